// Package process runs a task as a plain process of the host: its own session, limits by cgroups where they can
// be written, paths rewritten from the task's view to the host's. It isolates nothing else. Supervising, logs and
// anything of Nomad's protocol do not belong here.
package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// Command is one process to run. It travels to the supervisor in its spec.
type Command struct {
	Argv   []string `json:"argv"` // program as the job wrote it, then its arguments
	Env    []string `json:"env"`  // the whole environment, name=value
	Dir    string   `json:"dir"`  // working directory, absolute
	User   string   `json:"user,omitempty"`
	Group  Group    `json:"group"` // cgroups made for the process
	Limits Limits   `json:"limits"`
}

// Workload is a Command under supervision.
type Workload struct {
	command Command
	cmd     *exec.Cmd
	proc    supervisor.Proc
}

var _ supervisor.Workload = (*Workload)(nil)

// New makes the workload of a command.
func New(c Command) *Workload { return &Workload{command: c} }

// Start starts the process in its own session and cgroups.
func (w *Workload) Start(_ context.Context, stdout, stderr *os.File) (supervisor.Started, error) {
	c := w.command
	cmd, err := c.prepare()
	if err != nil {
		return supervisor.Started{}, err
	}
	if err := c.Group.Make(c.Limits); err != nil {
		return supervisor.Started{}, fmt.Errorf("set limits: %w", err)
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	ownSession(cmd)
	endWithParent(cmd)
	if err := startIn(cmd, c.Group); err != nil {
		return supervisor.Started{}, errors.Join(fmt.Errorf("start %s: %w", c.Argv[0], err), c.Group.Remove())
	}
	w.cmd = cmd
	if w.proc, err = supervisor.ProcOf(cmd.Process.Pid); err != nil {
		return supervisor.Started{}, errors.Join(err, cmd.Process.Kill())
	}
	adj := fmt.Sprintf("/proc/%d/oom_score_adj", w.proc.PID)
	if err := os.WriteFile(adj, []byte("0"), 0o644); err != nil && w.proc.Alive() {
		fmt.Fprintln(os.Stderr, "give the task the usual out-of-memory score:", err)
	}
	return supervisor.Started{Task: w.proc, At: time.Now().UTC()}, nil
}

// Wait blocks until the process has ended, and ends what it left behind.
func (w *Workload) Wait(context.Context) supervisor.Exit {
	err := w.cmd.Wait()
	w.proc.KillSession()
	exit := exitOf(w.cmd.ProcessState, err)
	exit.OOMKilled = w.command.Group.OOMKilled() && (exit.Code != 0 || exit.Signal != 0)
	if err := w.command.Group.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, "remove cgroup:", err)
	}
	return exit
}

// exitOf reads an exit. A process ended by a signal has the code a shell would give it, 128 and the signal.
func exitOf(state *os.ProcessState, err error) supervisor.Exit {
	if state == nil {
		return supervisor.Exit{Code: -1, Err: fmt.Sprintf("wait for the process: %v", err)}
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return supervisor.Exit{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return supervisor.Exit{Code: state.ExitCode()}
}

// prepare finds the program and the user.
func (c Command) prepare() (*exec.Cmd, error) {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, errors.New(`the process runtime has no command: write config { command = "…" }`)
	}
	path, err := c.lookPath()
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{Path: path, Args: c.Argv, Env: c.Env, Dir: c.Dir, SysProcAttr: &syscall.SysProcAttr{}}
	if c.User != "" {
		if err := setUser(cmd, c.User); err != nil {
			return nil, err
		}
	}
	return cmd, nil
}

// lookPath finds the program: a path with a slash as written, below the working directory when relative; else a
// file of that name in the working directory's local folder, else along the task's PATH.
func (c Command) lookPath() (string, error) {
	name := c.Argv[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(c.Dir, name)
		}
		return name, executable(name)
	}
	places := []string{filepath.Join(c.Dir, "local")}
	for _, pair := range c.Env {
		if list, ok := strings.CutPrefix(pair, "PATH="); ok {
			places = append(places, filepath.SplitList(list)...)
		}
	}
	for _, place := range places {
		path := filepath.Join(place, name)
		if filepath.IsAbs(path) && executable(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("command %q is neither in the task's local folder nor on its PATH: write its full path, or local/%s for a file fetched by an artifact", name, name)
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("command %q does not exist on this node", path)
	case err != nil:
		return fmt.Errorf("look at command %q: %w", path, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("command %q is not an executable file: set its mode, for example by chmod +x", path)
	}
	return nil
}
