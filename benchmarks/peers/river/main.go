// River runs on the same PostgreSQL as the other peers: jobs are inserted, then one client works their empty job.
// All in one process, without HTTP between: main URL JOBS. The last line of the output is JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	batch     = 500              // jobs of one insert
	inserters = 16               // goroutines that insert singly
	workers   = 100              // jobs at a time
	within    = 60 * time.Second // for all jobs of one setting
)

type emptyArgs struct{}

func (emptyArgs) Kind() string { return "empty" }

type emptyWorker struct {
	river.WorkerDefaults[emptyArgs]
	done *atomic.Int64
}

func (w *emptyWorker) Work(context.Context, *river.Job[emptyArgs]) error {
	w.done.Add(1)
	return nil
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url, number string) error {
	ctx := context.Background()
	jobs, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = inserters
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	figures := map[string]any{}
	settings := map[string]map[string]float64{}
	for _, cooldown := range []time.Duration{river.FetchCooldownDefault, river.FetchCooldownMin} {
		row, err := measured(ctx, pool, jobs, cooldown)
		if err != nil {
			return err
		}
		settings[fmt.Sprintf("%d workers, fetch cooldown %s", workers, cooldown)] = row
		for _, name := range []string{"jobs_per_s", "bulk_jobs_per_s"} {
			if best, found := figures[name]; !found || row[name] > best.(float64) {
				figures[name] = row[name]
			}
		}
	}
	figures["settings"] = settings
	return json.NewEncoder(os.Stdout).Encode(figures)
}

// measured returns jobs a second from the first insert to the last completion, inserted singly and in batches.
func measured(ctx context.Context, pool *pgxpool.Pool, jobs int, cooldown time.Duration) (map[string]float64, error) {
	singly, err := timed(ctx, pool, jobs, cooldown, insertSingly)
	if err != nil {
		return nil, err
	}
	batches, err := timed(ctx, pool, jobs, cooldown, insertBatches)
	if err != nil {
		return nil, err
	}
	return map[string]float64{"jobs_per_s": float64(jobs) / singly, "bulk_jobs_per_s": float64(jobs) / batches}, nil
}

func timed(
	ctx context.Context, pool *pgxpool.Pool, jobs int, cooldown time.Duration,
	insert func(context.Context, *river.Client[pgx.Tx], int) error,
) (float64, error) {
	var done atomic.Int64
	registered := river.NewWorkers()
	river.AddWorker(registered, &emptyWorker{done: &done})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown: cooldown,
		Logger:        slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Workers:       registered,
	})
	if err != nil {
		return 0, err
	}
	if _, err := pool.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := insert(ctx, client, jobs); err != nil {
		return 0, err
	}
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	for completed := 0; completed < jobs; {
		if time.Since(began) > within {
			return 0, fmt.Errorf("%d of %d jobs within %s", completed, jobs, within)
		}
		time.Sleep(2 * time.Millisecond)
		if int(done.Load()) < jobs {
			continue
		}
		query := "SELECT count(*) FROM river_job WHERE state = 'completed'"
		if err := pool.QueryRow(ctx, query).Scan(&completed); err != nil {
			return 0, err
		}
	}
	took := time.Since(began).Seconds()
	return took, client.Stop(ctx)
}

func insertSingly(ctx context.Context, client *river.Client[pgx.Tx], jobs int) error {
	var group sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(jobs))
	failures := make(chan error, inserters)
	for range inserters {
		group.Add(1)
		go func() {
			defer group.Done()
			for left.Add(-1) >= 0 {
				if _, err := client.Insert(ctx, emptyArgs{}, nil); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	group.Wait()
	close(failures)
	return <-failures
}

func insertBatches(ctx context.Context, client *river.Client[pgx.Tx], jobs int) error {
	for start := 0; start < jobs; start += batch {
		params := make([]river.InsertManyParams, min(batch, jobs-start))
		for place := range params {
			params[place].Args = emptyArgs{}
		}
		if _, err := client.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	return nil
}
