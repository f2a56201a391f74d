// Temporal's server on the same PostgreSQL, and its clients in a process of their own.
//
//	temporal schema FOLDER DATABASE VISIBILITY   creates the tables; FOLDER has PostgreSQL's socket
//	temporal serve CONFIG                        all services of the server in one process
//	temporal load ADDRESS CLIENTS SECONDS        the last line of the output is JSON
//
// A lifecycle is one workflow execution, from its start until its result is known to the client that started it. It is
// measured with one activity, which is the task of a job, and without: then the workflow itself is all that runs.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	_ "go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	"go.temporal.io/server/schema"
	"go.temporal.io/server/temporal"
	"go.temporal.io/server/tools/sql"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	namespace = "bench"
	queue     = "bench"
	within    = 60 * time.Second // until the new namespace is known to all services
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 4 && arguments[0] == "schema":
		return createTables(arguments[1], map[string]string{arguments[2]: "temporal", arguments[3]: "visibility"})
	case len(arguments) == 2 && arguments[0] == "serve":
		return serve(arguments[1])
	case len(arguments) == 4 && arguments[0] == "load":
		clients, seconds, err := parseLoad(arguments[2], arguments[3])
		if err != nil {
			return err
		}
		return load(arguments[1], clients, seconds)
	}
	return fmt.Errorf("unknown arguments: %q", arguments)
}

// The embedded PostgreSQL has no btree_gin, so these indexes are made without the namespace that comes first in each.
var (
	extension = regexp.MustCompile(`(?s)DO LANGUAGE 'plpgsql' \$\$\s+BEGIN\s+IF[^$]*btree_gin[^$]*\$\$;`)
	gin       = regexp.MustCompile(`(?i)(USING\s+GIN\s*\()\s*namespace_id\s*,`)
)

func createTables(socket string, schemas map[string]string) error {
	for database, name := range schemas {
		folder, err := os.MkdirTemp("", "temporal-schema-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder) //nolint:errcheck
		if err := writeSchema(folder, "postgresql/v12/"+name+"/versioned"); err != nil {
			return err
		}
		connect := []string{
			"temporal-sql-tool", "--plugin", "postgres12_pgx", "--ep", "localhost", "--port", "5432",
			"--user", "orchestrator", "--db", database, "--connect-attributes", "host=" + socket,
		}
		for _, command := range [][]string{
			{"setup-schema", "--version", "0.0"},
			{"update-schema", "--schema-dir", folder},
		} {
			if err := sql.RunTool(append(append([]string{}, connect...), command...)); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeSchema(folder, versions string) error {
	return fs.WalkDir(schema.Assets(), versions, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		place := filepath.Join(folder, strings.TrimPrefix(path, versions))
		if entry.IsDir() {
			return os.MkdirAll(place, 0o755)
		}
		content, err := fs.ReadFile(schema.Assets(), path)
		if err != nil {
			return err
		}
		text := extension.ReplaceAllString(string(content), "")
		return os.WriteFile(place, []byte(gin.ReplaceAllString(text, "$1")), 0o644)
	})
}

func serve(config string) error {
	server, err := temporal.NewServer(
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithServerConfigFilePath(config),
		temporal.InterruptOn(temporal.InterruptCh()),
	)
	if err != nil {
		return err
	}
	return server.Start()
}

func nothing(context.Context) error { return nil }

func withActivity(ctx workflow.Context) error {
	options := workflow.ActivityOptions{StartToCloseTimeout: time.Minute}
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, options), nothing).Get(ctx, nil)
}

func withoutActivity(workflow.Context) error { return nil }

func load(address string, clients int, seconds time.Duration) error {
	ctx := context.Background()
	errors := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})
	logger := sdklog.NewStructuredLogger(slog.New(errors))
	options := client.Options{HostPort: address, Namespace: namespace, Logger: logger}
	if err := register(ctx, options); err != nil {
		return err
	}
	connected, err := client.Dial(options)
	if err != nil {
		return err
	}
	defer connected.Close()
	runner := worker.New(connected, queue, worker.Options{
		MaxConcurrentActivityTaskPollers: 8,
		MaxConcurrentWorkflowTaskPollers: 8,
	})
	runner.RegisterWorkflow(withActivity)
	runner.RegisterWorkflow(withoutActivity)
	runner.RegisterActivity(nothing)
	if err := runner.Start(); err != nil {
		return err
	}
	defer runner.Stop()
	if err := usable(ctx, connected); err != nil {
		return err
	}
	task, err := lifecycles(clients, seconds, func() error { return execute(ctx, connected, withActivity) })
	if err != nil {
		return err
	}
	bare, err := lifecycles(clients, seconds, func() error { return execute(ctx, connected, withoutActivity) })
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"lifecycles_per_s": task.PerSecond, "workflows_per_s": bare.PerSecond, "activity": task, "workflow": bare,
	})
}

func register(ctx context.Context, options client.Options) error {
	namespaces, err := client.NewNamespaceClient(options)
	if err != nil {
		return err
	}
	defer namespaces.Close()
	request := &workflowservice.RegisterNamespaceRequest{
		Namespace:                        namespace,
		WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour),
	}
	for began := time.Now(); ; time.Sleep(time.Second) {
		err = namespaces.Register(ctx, request)
		if _, exists := err.(*serviceerror.NamespaceAlreadyExists); exists || err == nil {
			return nil
		}
		if time.Since(began) > within {
			return err
		}
	}
}

// usable returns once a workflow has run: a new namespace becomes known to the services after some seconds.
func usable(ctx context.Context, connected client.Client) error {
	for began := time.Now(); ; time.Sleep(time.Second) {
		err := execute(ctx, connected, withActivity)
		if err == nil || time.Since(began) > within {
			return err
		}
	}
}

func execute(ctx context.Context, connected client.Client, flow any) error {
	started, err := connected.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: queue}, flow)
	if err != nil {
		return err
	}
	return started.Get(ctx, nil)
}
