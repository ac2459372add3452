package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Times of starting and stopping a daemon.
const (
	pollEvery = 50 * time.Millisecond
	startTime = 5 * time.Second
	stopTime  = 20 * time.Second
	// quitAfter is how long the daemon waits for its clients before it ends them, in the words of its own command.
	quitAfter = "5"
	quitTime  = 8 * time.Second
	killTime  = 3 * time.Second
)

// maxLog is how large a log of MPS may be when a daemon is started.
const maxLog = 8 << 20

// ensure starts the daemon of a card unless it runs. started tells whether it did.
func (b *Backend) ensure(ctx context.Context, card string, event func(string)) (started bool, err error) {
	d := b.dirs(card)
	all, err := b.processes()
	if err != nil {
		return false, err
	}
	for _, p := range all {
		if !b.owns(p) && p.mayServe(card) {
			return false, fmt.Errorf("card %s is served by an MPS daemon that this driver did not start (pid %d, pipe directory %s): stop it (echo quit | sudo %s), or ask for hami",
				card, p.pid, p.pipe(), program)
		}
	}
	if at := slices.IndexFunc(all, func(p process) bool { return p.control && p.pipe() == d.pipe }); at >= 0 {
		if _, err := os.Stat(b.host.Path(d.pipe, "control")); err == nil {
			return false, nil
		}
		if slices.ContainsFunc(all, func(p process) bool { return !p.control && p.pipe() == d.pipe }) {
			return false, fmt.Errorf("the MPS daemon of %s lost its pipe directory %s while tasks use it: it is started anew when they have ended", card, d.pipe)
		}
		if err := b.stop(ctx, d); err != nil { // it runs, and nobody can reach it
			return false, err
		}
	}
	if !slices.ContainsFunc(all, func(p process) bool { return p.pipe() == d.pipe }) {
		// The daemon, which is root, would follow a link that a process of its user left there.
		if err := b.clear(d); err != nil {
			return false, err
		}
	}
	event("waiting for the MPS daemon of " + card)
	if err := b.start(ctx, card, d); err != nil {
		return true, fmt.Errorf("start the MPS daemon of %s: %w", card, err)
	}
	return true, nil
}

// start starts a daemon that serves what is visible to it, and waits until it is there.
func (b *Backend) start(ctx context.Context, visible string, d dirs) error {
	for _, dir := range []string{d.pipe, d.log} {
		if err := os.MkdirAll(b.host.Path(dir), 0o755); err != nil { //nolint:gosec // clients of other users come through it
			return fmt.Errorf("make folder for MPS: %w", err)
		}
	}
	if err := b.trim(d); err != nil {
		return err
	}
	out, err := b.host.Tool.Run(ctx, "env", envVisible+"="+visible, envPipe+"="+d.pipe, envLog+"="+d.log, program, "-d")
	if err != nil {
		return err
	}
	there, err := b.await(ctx, startTime, func(all []process) bool {
		return slices.ContainsFunc(all, func(p process) bool { return p.control && p.pipe() == d.pipe })
	}, out.ExitCode != 0)
	switch {
	case err != nil:
		return err
	case out.ExitCode != 0: // it may run by somebody else's start, and what it said is then no error
		if there && strings.Contains(out.Stdout+out.Stderr, "already running") {
			return nil
		}
		return fmt.Errorf("it ends with %d: %s (see %s)", out.ExitCode, firstLine(out), filepath.Join(d.log, "control.log"))
	case !there:
		return fmt.Errorf("it does not stay: see %s", filepath.Join(d.log, "control.log"))
	}
	return nil
}

// trim removes logs that have grown large.
func (b *Backend) trim(d dirs) error {
	for _, name := range []string{"control.log", "server.log"} {
		path := b.host.Path(d.log, name)
		if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("trim the log of MPS: %w", err)
			}
		}
	}
	return nil
}

// stop ends a card's daemon and its servers: by its own command, and where that does not help by signals. What is not there is
// stopped.
func (b *Backend) stop(ctx context.Context, d dirs) error {
	gone := func(all []process) bool {
		return !slices.ContainsFunc(all, func(p process) bool { return p.pipe() == d.pipe })
	}
	done, err := b.await(ctx, 0, gone, true)
	if err == nil && !done {
		if _, missing := os.Stat(b.host.Path(d.pipe, "control")); missing == nil {
			var out share.Output
			if out, err = b.command(ctx, d, "quit -t "+quitAfter); err == nil {
				done, err = b.await(ctx, quitTime, gone, out.ExitCode != 0)
			}
		}
	}
	for _, signal := range []string{"-TERM", "-KILL"} {
		if err != nil || done {
			break
		}
		if err = b.signal(ctx, d, signal); err == nil {
			done, err = b.await(ctx, killTime, gone, false)
		}
	}
	if err == nil && !done {
		err = fmt.Errorf("processes of MPS at %s do not end", d.pipe)
	}
	if err != nil {
		return fmt.Errorf("stop the MPS daemon: %w", err)
	}
	return b.clear(d)
}

// clear empties the pipe directory. The folder stays, since a container that runs has it mounted.
func (b *Backend) clear(d dirs) error {
	entries, err := os.ReadDir(b.host.Path(d.pipe))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	problems := []error{err}
	for _, e := range entries {
		problems = append(problems, os.RemoveAll(b.host.Path(d.pipe, e.Name())))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("empty the pipe directory of MPS: %w", err)
	}
	return nil
}

// command tells a daemon something.
func (b *Backend) command(ctx context.Context, d dirs, text string) (share.Output, error) {
	return b.host.Tool.Run(ctx, "env", envPipe+"="+d.pipe, envLog+"="+d.log, "sh", "-c", `echo "$1" | `+program, "sh", text)
}

// signal sends a signal to the processes of a pipe.
func (b *Backend) signal(ctx context.Context, d dirs, name string) error {
	all, err := b.processes()
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.pipe() != d.pipe {
			continue
		}
		out, err := b.host.Tool.Run(ctx, "kill", name, strconv.Itoa(p.pid))
		if err != nil {
			return err
		}
		if out.ExitCode != 0 && b.alive(p) {
			return fmt.Errorf("kill %s %d: %s", name, p.pid, firstLine(out))
		}
	}
	return nil
}

// await looks at the processes until they are as wanted; once only when that is enough.
func (b *Backend) await(ctx context.Context, limit time.Duration, wanted func([]process) bool, once bool) (bool, error) {
	for waited := time.Duration(0); ; waited += pollEvery {
		all, err := b.processes()
		if err != nil {
			return false, err
		}
		if wanted(all) {
			return true, nil
		}
		if once || waited >= limit {
			return false, nil
		}
		if !clock.Sleep(ctx, clock.System(), pollEvery) {
			return false, ctx.Err()
		}
	}
}

// sweep stops what is ours on cards without a share. When forced is false it leaves daemons that have a server, and so a client.
func (b *Backend) sweep(ctx context.Context, notes map[share.ID]note, forced bool) error {
	all, err := b.processes()
	if err != nil {
		return err
	}
	held := map[string]bool{}
	for _, n := range notes {
		held[b.dirs(n.Card).pipe] = true
	}
	var problems []error
	for _, p := range all {
		pipe := p.pipe()
		if !b.owns(p) || held[pipe] {
			continue
		}
		serves := slices.ContainsFunc(all, func(o process) bool { return !o.control && o.pipe() == pipe })
		if !forced && serves {
			continue
		}
		held[pipe] = true // once
		problems = append(problems, b.stop(ctx, dirs{card: filepath.Dir(pipe), pipe: pipe, log: filepath.Join(filepath.Dir(pipe), "log")}))
	}
	return errors.Join(problems...)
}

func firstLine(out share.Output) string {
	for line := range strings.Lines(out.Stderr + "\n" + out.Stdout) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return "it says nothing"
}
