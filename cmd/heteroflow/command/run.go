// Package command holds the commands of the heteroflow command line: each reads flags, asks a server or starts one,
// and prints. Data goes to standard output, messages to standard error. What the servers do, and how the parts of
// one machine are put together, does not belong here.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hashicorp/cli"

	"github.com/heteroflow/heteroflow/internal/version"
)

// Env is what a command has of the world. Tests give their own.
type Env struct {
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Environ        func() []string
}

// Exit codes: 0 it worked; 1 it did not; 2 it worked, and the answer is one to act on: a job waits for room, a plan
// would change something, the doctor found something broken.
const (
	exitOK    = 0
	exitError = 1
	exitOther = 2
)

// registry lists the commands by the words that call them.
var registry = map[string]func(Env) *command{
	"dev": devCommand, "engine": engineCommand, "server": serverCommand, "gateway": gatewayCommand,
	"job run": jobRunCommand, "job status": jobStatusCommand, "job logs": jobLogsCommand,
	"job stop": jobStopCommand, "job move": jobMoveCommand, "job plan": jobPlanCommand, "job validate": jobValidateCommand,
	"gpus": gpusCommand, "fragments": fragmentsCommand, "explain": explainCommand, "replay": replayCommand, "doctor": doctorCommand,
	"key create": keyCreateCommand, "key list": keyListCommand, "key delete": keyDeleteCommand,
	"key rotate": keyRotateCommand, "key retire": keyRetireCommand,
	"limit set": limitSetCommand, "limit list": limitListCommand, "limit delete": limitDeleteCommand,
	"price set": priceSetCommand, "price list": priceListCommand, "price delete": priceDeleteCommand, "audit": auditCommand,
	"endpoint create": endpointCreateCommand, "endpoint list": endpointListCommand, "endpoint delete": endpointDeleteCommand,
	"usage": usageCommand, "scaling": scalingCommand, "version": versionCommand,
}

// groups are the words that stand before other words.
var groups = map[string]string{
	"job":      "Run jobs, look at them and stop them",
	"key":      "Make and delete keys of people, programs, nodes and gateway users",
	"endpoint": "Name models that the gateway serves",
	"limit":    "Limit what keys, members and tenants use of the gateway",
	"price":    "Say what models cost, for budgets of money",
}

// Run runs the command that the arguments name and gives its exit code.
func Run(ctx context.Context, args []string, env Env) int {
	c := cli.NewCLI("heteroflow", version.Version)
	c.Args = args
	c.HelpWriter, c.ErrorWriter = env.Stdout, env.Stderr
	c.HelpFunc = help
	c.Commands = map[string]cli.CommandFactory{}
	for name, build := range registry {
		c.Commands[name] = func() (cli.Command, error) {
			cmd := build(env)
			cmd.name, cmd.env, cmd.ctx = name, env, ctx
			cmd.flags.Usage = func() {}
			return cmd, nil
		}
	}
	for name, synopsis := range groups {
		c.Commands[name] = func() (cli.Command, error) { return group{name, synopsis}, nil }
	}
	if word := unknownCommand(args); word != "" {
		fmt.Fprintf(env.Stderr, "there is no command %q\n\n", word)
	}
	code, err := c.Run()
	if err != nil {
		fmt.Fprintln(env.Stderr, err)
		return exitError
	}
	if code == cli.RunResultHelp || code == 127 { // 127: no such command; help was printed
		return exitError
	}
	return code
}

// unknownCommand is the first word when no command begins with it.
func unknownCommand(args []string) string {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return ""
	}
	for name := range registry {
		if first, _, _ := strings.Cut(name, " "); first == args[0] {
			return ""
		}
	}
	return args[0]
}

// group is a command that only has commands below it.
type group struct{ name, synopsis string }

func (g group) Synopsis() string { return g.synopsis }
func (g group) Run([]string) int { return cli.RunResultHelp }
func (g group) Help() string {
	return "Usage: heteroflow " + g.name + " <command> [flags] [arguments]\n\n  " + g.synopsis + "."
}

// help is the text without a command: what there is, common things first.
func help(commands map[string]cli.CommandFactory) string {
	order := []string{"dev", "gpus", "fragments", "job", "explain", "replay", "doctor", "usage", "scaling", "key", "endpoint", "limit", "price", "audit", "server", "gateway", "engine", "version"}
	var b strings.Builder
	b.WriteString("Usage: heteroflow [-version] [-help] <command> [flags] [arguments]\n\nCommands:\n")
	for _, name := range order {
		factory, ok := commands[name]
		if !ok {
			continue
		}
		if c, err := factory(); err == nil {
			fmt.Fprintf(&b, "    %-10s %s\n", name, c.Synopsis())
		}
	}
	for name := range commands {
		if !slices.Contains(order, name) {
			fmt.Fprintf(&b, "    %s\n", name)
		}
	}
	b.WriteString("\nThe placement service is asked at HETEROFLOW_ADDR (" + defaultAddr + ").")
	return b.String()
}

// codeError ends a command with an exit code of its own; without a text nothing more is printed.
type codeError struct {
	code int
	text string
}

func (e *codeError) Error() string { return e.text }

// finish prints what went wrong and gives the exit code.
func finish(env Env, name string, err error) int {
	var coded *codeError
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		if coded.text != "" {
			fmt.Fprintln(env.Stderr, coded.text)
		}
		return coded.code
	case errors.As(err, &usage):
		fmt.Fprintf(env.Stderr, "%s\nFor help: heteroflow %s -help\n", usage.text, name)
		return exitError
	}
	fmt.Fprintln(env.Stderr, "Error:", err)
	return exitError
}

// usageError is a command line that does not say what to do.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }
