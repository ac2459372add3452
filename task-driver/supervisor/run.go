package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Build makes the workload of a spec.
type Build func(Spec) (Workload, error)

// logWait is how long the supervisor waits for the log collector to open the read end of the FIFOs.
const logWait = 10 * time.Second

// Main is the life of a supervisor process: descriptor 0 brings the driver's go-ahead, descriptor 3 takes the
// answer. It returns the exit code of the process.
func Main(dir string, build Build) int {
	// A child asks to die with the thread that made it; the thread must therefore live as long as the process.
	runtime.LockOSThread()
	// Caught and dropped, not ignored: a child inherits what is ignored, and could then not be stopped.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	ready := os.NewFile(3, "ready")
	closeOnExec(ready)
	if word, err := io.ReadAll(io.LimitReader(os.Stdin, 16)); err != nil || strings.TrimSpace(string(word)) != "go" {
		return 1 // the driver died before it wrote down who we are
	}
	s := &session{dir: dir, ready: ready}
	if err := s.run(build); err != nil {
		fmt.Fprintln(os.Stderr, time.Now().UTC().Format(time.RFC3339), err)
		return 1
	}
	return 0
}

type session struct {
	dir    string
	ready  *os.File
	status Status
}

func (s *session) run(build Build) error {
	spec, err := s.takeSpec()
	if err != nil {
		return s.refuse(err)
	}
	alive, err := os.OpenFile(filepath.Join(s.dir, aliveFile), os.O_RDWR|aliveFlags, 0)
	if err != nil {
		return s.refuse(fmt.Errorf("open %s: %w", aliveFile, err))
	}
	// Held to the very end: whoever watches takes its closing for the end of this process.
	defer runtime.KeepAlive(alive)
	if err := s.settleIn(spec); err != nil {
		return s.refuse(err)
	}
	logs, err := openLogs(spec.Stdout, spec.Stderr, logWait)
	if spec.Resume && errors.Is(err, errNoReader) {
		// The collector took the death of the last supervisor for the end of the task. The task matters more.
		fmt.Fprintln(os.Stderr, "the task's output is dropped:", err)
		logs, err = openLogs(os.DevNull, os.DevNull, logWait)
	}
	if err != nil {
		return s.refuse(err)
	}
	workload, err := build(spec)
	if err != nil {
		return s.refuse(err)
	}
	ctx := context.Background()
	started, err := workload.Start(ctx, logs.stdout, logs.stderr)
	if err != nil {
		return s.refuse(errors.Join(err, logs.Close()))
	}
	s.status.Phase, s.status.Task, s.status.Ref, s.status.StartedAt = Running, started.Task, started.Ref, started.At
	if err := WriteStatus(s.dir, s.status); err != nil {
		started.Task.KillSession()
		return s.refuse(err)
	}
	s.answer("ok")
	exit := workload.Wait(ctx)
	closed := logs.Close()
	s.status.Phase, s.status.Exit, s.status.EndedAt = Exited, &exit, time.Now().UTC()
	return errors.Join(WriteStatus(s.dir, s.status), closed)
}

// takeSpec reads the spec and removes it, since it holds the task's environment.
func (s *session) takeSpec() (Spec, error) {
	path := filepath.Join(s.dir, specFile)
	body, err := os.ReadFile(path)
	if err != nil {
		return Spec{}, fmt.Errorf("read task: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return Spec{}, fmt.Errorf("remove task file: %w", err)
	}
	var spec Spec
	if err := json.Unmarshal(body, &spec); err != nil {
		return Spec{}, fmt.Errorf("read task: %w", err)
	}
	return spec, nil
}

// settleIn takes the supervisor's place: its own line in the state, the task's cgroups, and last in the order of
// the kernel's out-of-memory killer, because the exit result goes with it.
func (s *session) settleIn(spec Spec) error {
	self, err := ProcOf(os.Getpid())
	if err != nil {
		return err
	}
	s.status = Status{TaskID: spec.TaskID, Phase: Starting, Supervisor: self}
	for _, folder := range spec.Cgroups {
		err := os.MkdirAll(folder, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(strconv.Itoa(self.PID)), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "join cgroup:", err) // without the right to: the task runs where the agent does
		}
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "protect from the out-of-memory killer:", err)
	}
	if written, err := ReadStatus(s.dir); err == nil && written.Phase == Starting && written.Supervisor == self && written.TaskID == spec.TaskID {
		return nil // by the driver, before it let us go
	}
	return WriteStatus(s.dir, s.status)
}

// refuse tells the driver why the task did not start.
func (s *session) refuse(err error) error {
	var temporary interface{ Temporary() bool }
	said := StartError{Text: err.Error(), Again: errors.As(err, &temporary) && temporary.Temporary()}
	text, encodeErr := json.Marshal(said)
	if encodeErr != nil {
		return errors.Join(err, encodeErr)
	}
	s.answer("error " + string(text))
	return err
}

// answer tells the driver. A driver that has died meanwhile finds the state folder instead.
func (s *session) answer(line string) {
	_, err := io.WriteString(s.ready, line+"\n")
	if err := errors.Join(err, s.ready.Close()); err != nil {
		fmt.Fprintln(os.Stderr, "answer driver:", err)
	}
}
