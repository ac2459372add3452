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
this machine; without them, what the placement service says counts. The exit code is 2 when something failed.`
	conn, out := c.withConnection(), c.withOutput()
	bin := c.flags.String("bin-dir", "", "`folder` of heteroflow-device (default: beside this program)")
	state := c.flags.String("state-dir", "/var/lib/heteroflow", "`folder` of the device plugin's state, with the history of the cards")
	c.run = func(ctx context.Context, _ []string) error {
		if *bin == "" {
			own, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w: write -bin-dir", err)
			}
			*bin = filepath.Dir(own)
		}
		findings := runChecks(ctx, []check{
			func(ctx context.Context) []finding { return c.checkService(ctx, conn) },
			func(ctx context.Context) []finding { return c.checkNodes(ctx, conn) },
			func(ctx context.Context) []finding { return c.checkQueue(ctx, conn) },
			func(ctx context.Context) []finding { return c.checkNomad(ctx, conn) },
			c.checkConsul, c.checkDatabase, checkDocker,
			func(ctx context.Context) []finding { return checkCards(ctx, filepath.Join(*bin, "heteroflow-device")) },
			func(context.Context) []finding { return checkHistory(*state) },
		})
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
