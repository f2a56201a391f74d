// Clients and one worker of Hatchet's engine: main CLIENTS SECONDS. The environment has the address and the token.
//
// A lifecycle is one run of a task, from its start until its result is known to the client that started it. The last
// line of the output is JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	hatchet "github.com/hatchet-dev/hatchet/sdks/go"
)

const (
	slots  = 100
	within = 60 * time.Second // until the worker is registered
)

type empty struct{}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(number, length string) error {
	clients, seconds, err := parseLoad(number, length)
	if err != nil {
		return err
	}
	client, err := hatchet.NewClient()
	if err != nil {
		return err
	}
	task := client.NewStandaloneTask("nothing", func(hatchet.Context, empty) (empty, error) { return empty{}, nil })
	quiet := zerolog.New(os.Stderr).Level(zerolog.ErrorLevel)
	worker, err := client.NewWorker(
		"bench", hatchet.WithWorkflows(task), hatchet.WithSlots(slots), hatchet.WithLogger(&quiet),
	)
	if err != nil {
		return err
	}
	stop, err := worker.Start()
	if err != nil {
		return err
	}
	defer stop() //nolint:errcheck
	execute := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		_, err := task.Run(ctx, empty{})
		return err
	}
	if err := execute(); err != nil {
		return err
	}
	found, err := lifecycles(clients, seconds, execute)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"lifecycles_per_s": found.PerSecond, "task": found})
}
