package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Spec is what one supervisor is told.
type Spec struct {
	TaskID  string          `json:"task_id"`
	Kind    string          `json:"kind"`             // which workload, the caller's word
	Stdout  string          `json:"stdout"`           // FIFO, file or null device
	Stderr  string          `json:"stderr"`           //
	Cgroups []string        `json:"cgroups"`          // folders of cgroups the supervisor joins where it can
	Body    json.RawMessage `json:"body"`             // the workload; may hold secrets, so that the file goes as soon as it is read
	Resume  bool            `json:"resume,omitempty"` // take over a workload that already runs
}

// Launcher starts supervisors.
type Launcher struct {
	Exe  string   // the binary; /proc/self/exe stays right when the file is replaced by an upgrade
	Args []string // arguments before the state folder
}

// Self launches the running binary with the given arguments.
func Self(args ...string) Launcher { return Launcher{Exe: "/proc/self/exe", Args: args} }

// StartError is what the workload said when it could not be started.
type StartError struct {
	Text string `json:"text"`
	// Again says that the same start may succeed later, as when a daemon is being restarted.
	Again bool `json:"again"`
}

func (e *StartError) Error() string { return e.Text }

// Launch starts a supervisor for the task in dir and returns once the workload runs. The supervisor touches
// nothing before its pid is on disk, so that a driver killed at any point finds it or leaves none behind. When
// ctx ends first the supervisor is killed.
func (l Launcher) Launch(ctx context.Context, dir string, spec Spec) (Status, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Status{}, fmt.Errorf("make task state folder: %w", err)
	}
	if err := makeFIFO(filepath.Join(dir, aliveFile)); err != nil {
		return Status{}, err
	}
	if err := writeSpec(dir, spec); err != nil {
		return Status{}, err
	}
	errLog, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return Status{}, fmt.Errorf("open supervisor log: %w", err)
	}
	defer errLog.Close() //nolint:errcheck // the child has its own descriptor

	readyR, readyW, err := os.Pipe()
	if err != nil {
		return Status{}, fmt.Errorf("make pipe: %w", err)
	}
	defer readyR.Close() //nolint:errcheck // read side
	cmd := exec.Command(l.Exe, append(append([]string{}, l.Args...), dir)...)
	cmd.Stderr = errLog
	cmd.ExtraFiles = []*os.File{readyW}
	cmd.Env = supervisorEnv()
	cmd.Dir = "/"
	cmd.SysProcAttr = ownSession()
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	closed := readyW.Close()
	if err := errors.Join(err, closed); err != nil {
		return Status{}, fmt.Errorf("start supervisor: %w", err)
	}
	go func() {
		// Only reaps: the result is on disk, and the supervisor outlives a driver that goes first.
		if err := cmd.Wait(); err != nil {
			return
		}
	}()
	return l.handshake(ctx, dir, spec.TaskID, cmd.Process.Pid, stdin, readyR)
}

// writeSpec writes what the supervisor reads at once and removes. Nobody reads it after a loss of power, so that the start does
// not wait for the disk.
func writeSpec(dir string, spec Spec) error {
	body, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode %s: %w", specFile, err)
	}
	path := filepath.Join(dir, specFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an earlier %s: %w", specFile, err)
	}
	if err := os.WriteFile(path, body, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", specFile, err)
	}
	return nil
}

func (l Launcher) handshake(ctx context.Context, dir, taskID string, pid int, stdin io.WriteCloser, ready *os.File) (Status, error) {
	proc, err := ProcOf(pid)
	if err == nil {
		err = WriteStatus(dir, Status{TaskID: taskID, Phase: Starting, Supervisor: proc})
	}
	if err == nil {
		_, err = io.WriteString(stdin, "go\n")
	}
	if err := errors.Join(err, stdin.Close()); err != nil {
		return Status{}, fmt.Errorf("hand over to supervisor: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		if err := proc.Signal(syscall.SIGKILL); err == nil || errors.Is(err, os.ErrProcessDone) {
			return // the read below ends with the process
		}
	})
	defer stop()
	line, err := bufio.NewReader(ready).ReadString('\n')
	if ctx.Err() != nil {
		return Status{}, fmt.Errorf("wait for the task to start: %w", context.Cause(ctx))
	}
	if err != nil {
		return Status{}, fmt.Errorf("supervisor ended before the task started%s", logTail(dir))
	}
	if text, failed := strings.CutPrefix(strings.TrimSpace(line), "error "); failed {
		said := &StartError{}
		if err := json.Unmarshal([]byte(text), said); err != nil {
			said.Text = text
		}
		return Status{}, said
	}
	return ReadStatus(dir)
}

// supervisorEnv is what a supervisor needs of the driver's environment: where programs are and how to reach a
// container daemon. Tokens of the agent do not travel.
func supervisorEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// logTail is the end of what the supervisor wrote to its own log, for an error text.
func logTail(dir string) string {
	body, err := os.ReadFile(filepath.Join(dir, logFile))
	text := strings.TrimSpace(string(body))
	if err != nil || text == "" {
		return ""
	}
	return ": " + text[max(0, len(text)-400):]
}

// pause is how long a loop waits that looks at /proc again.
func pause() { time.Sleep(10 * time.Millisecond) }
