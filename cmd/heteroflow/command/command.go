package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/posener/complete"
)

// A command is one command: its flags, its help and what it does.
type command struct {
	env  Env
	ctx  context.Context // of the process: it ends with Ctrl-C, and hashicorp/cli has no place to hand it over
	name string

	synopsis string // one line, without a full stop
	operands string // such as "JOB" or "[JOB]"
	about    string // more help; may be empty
	flags    *flag.FlagSet
	predict  map[string]complete.Predictor // for values of flags, and for operands under ""
	min, max int                           // how many operands
	run      func(ctx context.Context, args []string) error
}

func newCommand(env Env, synopsis, operands string) *command {
	c := &command{env: env, synopsis: synopsis, operands: operands, predict: map[string]complete.Predictor{}}
	c.flags = flag.NewFlagSet("", flag.ContinueOnError)
	c.flags.SetOutput(io.Discard) // problems are told by finish
	for _, word := range strings.Fields(operands) {
		c.max++
		if !strings.HasPrefix(word, "[") {
			c.min++
		}
	}
	return c
}

// Synopsis is part of cli.Command.
func (c *command) Synopsis() string { return c.synopsis }

// Help is part of cli.Command.
func (c *command) Help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: heteroflow %s [flags]", c.name)
	if c.operands != "" {
		b.WriteString(" " + c.operands)
	}
	fmt.Fprintf(&b, "\n\n  %s.\n", c.synopsis)
	if c.about != "" {
		b.WriteString("\n" + indent(strings.TrimSpace(c.about), "  ") + "\n")
	}
	b.WriteString("\nFlags:\n")
	c.flags.VisitAll(func(f *flag.Flag) {
		kind, text := flag.UnquoteUsage(f)
		if kind != "" {
			kind = "=<" + kind + ">"
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(&b, "\n  -%s%s\n    %s\n", f.Name, kind, text)
	})
	return strings.TrimRight(b.String(), "\n")
}

// Run is part of cli.Command.
func (c *command) Run(args []string) int {
	operands, err := c.parse(args)
	if err == nil {
		err = c.run(c.ctx, operands)
	}
	return finish(c.env, c.name, err)
}

// parse takes flags before and after the operands.
func (c *command) parse(args []string) (operands []string, err error) {
	for {
		if err := c.flags.Parse(args); err != nil {
			return nil, &usageError{err.Error()}
		}
		rest := c.flags.Args()
		if len(rest) == 0 {
			break
		}
		if ended := len(args) - len(rest); ended > 0 && args[ended-1] == "--" {
			operands = append(operands, rest...)
			break
		}
		operands = append(operands, rest[0])
		args = rest[1:]
	}
	switch {
	case len(operands) < c.min:
		return nil, &usageError{fmt.Sprintf("this command needs %s", c.operands)}
	case len(operands) > c.max && c.max == 0:
		return nil, &usageError{fmt.Sprintf("this command takes no argument: %q is one", operands[0])}
	case len(operands) > c.max:
		return nil, &usageError{fmt.Sprintf("this command takes %s: %q is too much", c.operands, operands[c.max])}
	}
	return operands, nil
}

// AutocompleteFlags is part of cli.CommandAutocomplete.
func (c *command) AutocompleteFlags() complete.Flags {
	flags := complete.Flags{}
	c.flags.VisitAll(func(f *flag.Flag) {
		predictor, known := c.predict[f.Name]
		switch {
		case known:
		case isBool(f):
			predictor = complete.PredictNothing
		default:
			predictor = complete.PredictAnything
		}
		flags["-"+f.Name] = predictor
	})
	return flags
}

// AutocompleteArgs is part of cli.CommandAutocomplete.
func (c *command) AutocompleteArgs() complete.Predictor {
	if predictor, ok := c.predict[""]; ok {
		return predictor
	}
	return complete.PredictNothing
}

// oneOf refuses a value of a flag that is none of those there are.
func oneOf(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	last := len(known) - 1
	return &usageError{fmt.Sprintf("-%s %q is not known: write %s or %s", flag, value, strings.Join(known[:last], ", "), known[last])}
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(text, "\n", "\n"+by)
}

// stringList is a flag that may be given several times.
type stringList []string

func (l *stringList) String() string { return strings.Join(*l, ",") }

// Set is part of flag.Value.
func (l *stringList) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// pairs is a flag name=value that may be given several times.
type pairs map[string]string

func (p pairs) String() string { return "" }

// Set is part of flag.Value.
func (p pairs) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return errors.New("write name=value")
	}
	p[name] = value
	return nil
}
