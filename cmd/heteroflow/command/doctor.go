package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A finding is the result of one check.
type finding struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, warn or fail
	Detail string `json:"detail"`
	Advice string `json:"advice,omitempty"` // what to do; empty when there is nothing to do
	part   bool   // of the line before it, and indented so
}

const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "fail"
)

// checkTime bounds one check: what hangs is told, and holds up no other.
const checkTime = 20 * time.Second

// A check looks at one part and says what it found.
type check func(context.Context) []finding

func doctorCommand(env Env) *command {
	c := newCommand(env, "Check what HeteroFlow needs, and say what to do", "")
	c.about = `
Each line is ok, warn or fail. Parts that are named by NOMAD_ADDR, CONSUL_HTTP_ADDR and DATABASE_URL are asked from
this machine; without them, what the placement service says counts. The exit code is 2 when something failed.

-bundle packs what the tools and the kernel said of this machine's cards into a file, with numbers of single cards, names of
hosts and users, addresses, command lines and tokens masked; -replay tells of the machine that such a file was made on.`
	conn, out := c.withConnection(), c.withOutput()
	bin := c.flags.String("bin-dir", "", "`folder` of heteroflow-device (default: beside this program)")
	state := c.flags.String("state-dir", "/var/lib/heteroflow", "`folder` of the device plugin's state, with the history of the cards")
	into := c.flags.String("bundle", "", "pack what was read of this machine's cards into this new `file`, such as node.tar.gz")
	from := c.flags.String("replay", "", "tell of the machine that this `file` was packed on, and of nothing else")
	c.run = func(ctx context.Context, _ []string) error {
		if *into != "" && *from != "" {
			return &usageError{"-bundle and -replay are of two machines: write one of them"}
		}
		if _, err := os.Lstat(*into); *into != "" && err == nil {
			return fmt.Errorf("%s is there already: name another file", *into)
		}
		if *bin == "" {
			own, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w: write -bin-dir", err)
			}
			*bin = filepath.Dir(own)
		}
		plugin := []string{"-state-dir", *state}
		if *into != "" {
			plugin = append(plugin, "-bundle", *into)
		}
		checks := []check{
			func(ctx context.Context) []finding { return c.checkService(ctx, conn) },
			func(ctx context.Context) []finding { return c.checkNodes(ctx, conn) },
			func(ctx context.Context) []finding { return c.checkIntents(ctx, conn) },
			func(ctx context.Context) []finding { return c.checkQueue(ctx, conn) },
			func(ctx context.Context) []finding { return c.checkNomad(ctx, conn) },
			c.checkConsul, c.checkDatabase, checkDocker,
			func(ctx context.Context) []finding {
				return checkCards(ctx, filepath.Join(*bin, "heteroflow-device"), plugin, *out.verbose)
			},
			func(context.Context) []finding { return checkHistory(*state) },
		}
		if *from != "" {
			checks = []check{func(ctx context.Context) []finding {
				return checkCards(ctx, filepath.Join(*bin, "heteroflow-device"), []string{"-replay", *from}, *out.verbose)
			}}
		}
		findings := runChecks(ctx, checks)
		if err := c.print(out, findings, nil, func() error { return c.printf("%s", findingText(findings)) }); err != nil {
			return err
		}
		for _, f := range findings {
			if f.Status == statusFail {
				return &codeError{code: exitOther}
			}
		}
		return nil
	}
	return c
}

// runChecks runs all checks at once and gives their findings in order.
func runChecks(ctx context.Context, checks []check) []finding {
	results := make([][]finding, len(checks))
	var wg sync.WaitGroup
	for i, run := range checks {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, checkTime)
			defer cancel()
			results[i] = run(ctx)
		})
	}
	wg.Wait()
	var all []finding
	for _, r := range results {
		all = append(all, r...)
	}
	return all
}

func findingText(findings []finding) string {
	width := 0
	for _, f := range findings {
		width = max(width, len(f.title()))
	}
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", f.Status, width, f.title(), f.Detail)
		if f.Advice != "" {
			fmt.Fprintf(&b, "      %s  → %s\n", strings.Repeat(" ", width), f.Advice)
		}
	}
	return b.String()
}

func (f finding) title() string {
	if f.part {
		return "  " + f.Name
	}
	return f.Name
}

// partOf marks a finding as one about a part of what the line before is about.
func partOf(f finding) finding {
	f.part = true
	return f
}

func ok(name, format string, args ...any) finding {
	return finding{Name: name, Status: statusOK, Detail: fmt.Sprintf(format, args...)}
}

func warn(name, advice, format string, args ...any) finding {
	return finding{Name: name, Status: statusWarn, Detail: oneLine(fmt.Sprintf(format, args...)), Advice: advice}
}

// oneLine folds the lines of an error that has several.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\t' })
	return strings.Join(slices.Compact(lines), " ")
}

func fail(name, advice, format string, args ...any) finding {
	return finding{Name: name, Status: statusFail, Detail: oneLine(fmt.Sprintf(format, args...)), Advice: advice}
}
