// Command heteroflow-sim-inference serves a simulated model over OpenAI's protocol. It runs no model and uses no
// card.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/heteroflow/heteroflow/internal/version"
	"github.com/heteroflow/heteroflow/siminference"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "heteroflow-sim-inference:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var cfg siminference.Config
	flags := flag.NewFlagSet("heteroflow-sim-inference", flag.ContinueOnError)
	addr := flags.String("addr", defaultAddr(), "address to listen on; by default the port that Nomad gave as \"http\"")
	flags.StringVar(&cfg.Model, "model", "sim-7b", "name of the simulated model")
	flags.Float64Var(&cfg.TokensPerSec, "token-rate", 50, "tokens a second of one request; 0 is as fast as it can")
	flags.DurationVar(&cfg.StartupDelay, "startup-delay", 0, "how long the model pretends to load")
	flags.DurationVar(&cfg.PrefillPerK, "prefill", 0, "time to the first token for each 1,000 prompt tokens")
	flags.IntVar(&cfg.MaxRunning, "max-running", 0, "requests that run at once; 0 is no limit")
	flags.IntVar(&cfg.MaxTokens, "max-tokens", 32, "answer length when the request sets none")
	showVersion := flags.Bool("version", false, "print the version and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *showVersion {
		fmt.Println("heteroflow-sim-inference", version.Version, "(simulated: it runs no model)")
		return nil
	}
	engine, err := siminference.New(cfg)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Printf("simulated model %s on http://%s; cards visible to this task: %q\n", cfg.Model, listener.Addr(), os.Getenv("HETEROFLOW_CARDS"))
	server := &http.Server{Handler: engine.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		// Nomad stops tasks with a signal: running answers get a moment to end.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// defaultAddr is where Nomad told the task to listen, or a fixed port on loopback outside Nomad.
func defaultAddr() string {
	if port := os.Getenv("NOMAD_PORT_http"); port != "" {
		return ":" + port
	}
	return "127.0.0.1:8000"
}
