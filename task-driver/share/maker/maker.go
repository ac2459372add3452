// Package maker holds what the backends of all makers do alike: run a tool and say what it answered, hold an ask against the
// sizes that there are, find a card's node, and keep a library as it was when a task began. How one maker divides its cards
// lives in that maker's package.
package maker

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// undoTime bounds how long it is tried to take back what was half made.
const undoTime = 15 * time.Second

// Undoing is the context in which what was half made is taken back: whoever asked for it may have gone.
func Undoing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), undoTime)
}

// Run runs a tool and gives what it printed to its standard output. A status other than 0 is an error with the tool's words.
func Run(ctx context.Context, tool share.Tool, name string, args ...string) (string, error) {
	out, err := tool.Run(ctx, name, args...)
	if err != nil {
		return "", err
	}
	if out.ExitCode == 0 {
		return out.Stdout, nil
	}
	said := firstLine(out.Stderr)
	if said == "" {
		said = firstLine(out.Stdout)
	}
	if said == "" {
		said = "it printed nothing"
	}
	return "", fmt.Errorf("%s ended with status %d: %s", strings.Join(append([]string{filepath.Base(name)}, args...), " "), out.ExitCode, said)
}

func firstLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}

// Find is the first of the programs that is there. The error is that of the last, errors.Is exec.ErrNotFound as a rule.
func Find(tool share.Tool, names ...string) (string, error) {
	err := error(exec.ErrNotFound)
	for _, name := range names {
		if _, err = tool.Look(name); err == nil {
			return name, nil
		}
	}
	return "", err
}

// SizeError says that a mode makes no share as large as was granted, and what can be asked instead.
type SizeError struct {
	Mode  accel.Mode
	Ask   share.Ask
	Sizes string // for a sentence
}

func (e *SizeError) Error() string {
	what := Exact(e.Ask.MemoryMiB)
	if e.Ask.ComputePct > 0 {
		what += fmt.Sprintf(" and %d %% of compute", e.Ask.ComputePct)
	}
	return fmt.Sprintf("%s makes no share of just %s of a %s: write memory and compute as one of %s, or ask for the whole card",
		e.Mode, what, e.Ask.Card.Model, e.Sizes)
}

// Fit is the share that an ask becomes by the rule of a mode. More memory than was granted is never given, since nobody has
// reserved it: the error, a *SizeError, names the sizes instead.
func Fit(r accel.Rounding, a share.Ask) (accel.Share, error) {
	s, ok := r.Round(a.MemoryMiB, a.ComputePct, a.Card.MemoryMiB)
	if !ok || a.MemoryMiB == 0 || s.MemoryMiB > a.MemoryMiB {
		return accel.Share{}, &SizeError{Mode: r.Mode, Ask: a, Sizes: Sizes(r)}
	}
	return s, nil
}

// Sizes lists what a rule gives, for a sentence.
func Sizes(r accel.Rounding) string {
	if len(r.Templates) == 0 {
		step := max(r.StepMiB, 1)
		return "multiples of " + Exact(step) + " up to the card's memory"
	}
	var sizes []string
	for _, t := range r.Templates {
		text := fmt.Sprintf("%s (%s", t.Name, Exact(t.MemoryMiB))
		if t.Parts > 0 && r.Parts > 0 {
			text += fmt.Sprintf(", %d %%", t.Parts*100/r.Parts)
		}
		sizes = append(sizes, text+")")
	}
	return strings.Join(sizes, ", ")
}

// Exact writes a size so that it can be copied into a job: GiB only where it is whole.
func Exact(mib uint64) string {
	if mib > 0 && mib%1024 == 0 {
		return strconv.FormatUint(mib/1024, 10) + " GiB"
	}
	return strconv.FormatUint(mib, 10) + " MiB"
}

var number = regexp.MustCompile(`(\d+)$`)

// NodeNumber is the number at the end of the first of the card's nodes that begins with stem, such as 3 for /dev/davinci3.
// Without such a node it is the card's index.
func NodeNumber(c grant.Card, stem string) int {
	for _, node := range c.Nodes {
		rest, ok := strings.CutPrefix(node, stem)
		if n, err := strconv.Atoi(rest); ok && number.MatchString(rest) && err == nil {
			return n
		}
	}
	return c.Index
}

// ErrContainerOnly is said where a share is bound by what a container is given.
var ErrContainerOnly = errors.New("this kind of share is bound by mounts, which a process of the host does not get: run the task in a container (set image), or ask for qos bronze")
