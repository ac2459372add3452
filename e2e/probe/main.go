//go:build linux

// Command probe is the program that end-to-end tests run as a task: it shows what a task sees and holds still, ends
// or answers on demand. It tests nothing itself.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("write a command: env, hold, own, serve, ask, train or exit")
	}
	flags := flag.NewFlagSet("probe", flag.ContinueOnError)
	steps := flags.Int("steps", 3, "train: lines to print")
	every := flags.Duration("every", 10*time.Millisecond, "train: pause between lines")
	code := flags.Int("code", 1, "exit: status")
	after := flags.String("after", "", "exit: not before this file is there")
	from := flags.String("from", "", "ask: URL")
	claims := flags.String("claims", "", "own: folder in which tasks claim what they were given")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1)
	switch args[0] {
	case "env": // print the environment and end
		return printEnv()
	case "hold": // print the environment and stay until told to stop
		if err := printEnv(); err != nil {
			return err
		}
		fmt.Println("stopped by", <-stop)
		return nil
	case "own": // hold, and claim what it was given
		if err := claim(*claims); err != nil {
			return err
		}
		if err := printEnv(); err != nil {
			return err
		}
		fmt.Println("stopped by", <-stop)
		return nil
	case "serve": // answer with the environment
		return http.ListenAndServe(":"+os.Getenv("NOMAD_PORT_http"), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			json.NewEncoder(w).Encode(environment()) //nolint:errcheck // the client left
		}))
	case "ask": // ask until there is an answer, say so, and stay until told to stop
		for {
			if answer, err := http.Get(*from); err == nil {
				answer.Body.Close()
				fmt.Println("answered with", answer.Status)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		fmt.Println("stopped by", <-stop)
		return nil
	case "train":
		for i := range *steps {
			fmt.Printf("step %d of %d\n", i+1, *steps)
			time.Sleep(*every)
		}
		return nil
	case "exit":
		for *after != "" {
			if _, err := os.Stat(*after); err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		os.Exit(*code)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func environment() map[string]string {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}

func printEnv() error {
	return json.NewEncoder(os.Stdout).Encode(environment())
}
