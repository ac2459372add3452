package brandtest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An Answer is what a tool does when it is called.
type Answer struct {
	Text   string // printed
	Stderr bool   // to the error stream
	Status int    // exit status
	Delay  time.Duration
	Hang   bool // it never ends
}

// Sample is the answer that prints a file.
func Sample(t testing.TB, path string) Answer {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return Answer{Text: string(body)}
}

// A Player stands in for a maker's tool: it plays any text as that tool, as its control file says at the time of each
// call, so that a running plugin sees the tool change. The control file is <tool>.play beside it: a line for each kind
// of call, the first that fits counts,
//
//	arguments, as a shell pattern|exit status|1 or 2, the stream|seconds of delay, or hang|file that is printed
//
// A call that no line fits is refused with status 2. Every call is added to <tool>.calls.
type Player struct {
	Path string // the stand-in
}

// script of a Player; %[1]s is its path.
const script = `#!/bin/sh
# Stands in for a maker's tool.
call="$*"
printf '%%s\n' "$call" >>'%[1]s.calls'
while IFS='|' read -r pattern status stream delay file; do
	case "$call" in
	$pattern)
		[ "$delay" = hang ] && exec sleep 86400
		[ "$delay" = 0 ] || sleep "$delay"
		if [ "$stream" = 2 ]; then cat "$file" >&2; else cat "$file"; fi
		exit "$status" ;;
	esac
done <'%[1]s.play'
echo "stand-in: no answer to: $call" >&2
exit 2
`

// Install puts a Player of a tool into a folder. It refuses every call until Play says more.
func Install(t testing.TB, dir, name string) Player {
	t.Helper()
	p := Player{Path: filepath.Join(dir, name)}
	p.Play(t, nil)
	// A process forked while the file is open for writing would keep it from being started for a moment.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(p.Path, fmt.Appendf(nil, script, p.Path), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// Play says what the tool answers from now on, by its arguments joined with blanks; a * in them stands for any text.
// Calls under way go on as they began.
func (p Player) Play(t testing.TB, answers map[string]Answer) {
	t.Helper()
	var control strings.Builder
	for _, pattern := range mostExactFirst(answers) {
		a := answers[pattern]
		// Named for what it holds: a call under way still reads what it began with.
		file := fmt.Sprintf("%s.%x", p.Path, sha256.Sum256([]byte(a.Text)))
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			if err := os.WriteFile(file, []byte(a.Text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		stream, delay := 1, fmt.Sprintf("%g", a.Delay.Seconds())
		if a.Stderr {
			stream = 2
		}
		if a.Hang {
			delay = "hang"
		}
		fmt.Fprintf(&control, "%s|%d|%d|%s|%s\n", pattern, a.Status, stream, delay, file)
	}
	next := p.Path + ".play.next"
	if err := os.WriteFile(next, []byte(control.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, p.Path+".play"); err != nil {
		t.Fatal(err)
	}
}

func mostExactFirst(answers map[string]Answer) []string {
	var patterns []string
	for pattern := range answers {
		patterns = append(patterns, pattern)
	}
	slices.SortFunc(patterns, func(a, b string) int {
		return cmp.Or(strings.Count(a, "*")-strings.Count(b, "*"), len(b)-len(a), cmp.Compare(a, b))
	})
	return patterns
}

// Calls are the arguments of every call so far, joined with blanks, oldest first.
func (p Player) Calls(t testing.TB) []string {
	t.Helper()
	body, err := os.ReadFile(p.Path + ".calls")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
}

// Tool installs a Player in a folder of its own that always answers alike, and returns its path.
func Tool(t testing.TB, name string, answers map[string]Answer) string {
	t.Helper()
	p := Install(t, t.TempDir(), name)
	p.Play(t, answers)
	return p.Path
}
