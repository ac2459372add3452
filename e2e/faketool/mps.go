//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// controlProgram is MPS's, of which this is a real process: the driver finds it in /proc and ends it, and tests kill it.
const controlProgram = "nvidia-cuda-mps-control"

// daemonVariable names the folder of the machine in the daemon's environment; it makes this program the daemon.
const daemonVariable = "FAKETOOL_DAEMON"

// pipe is where the daemon listens.
func pipe() string { return filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control") }

// control is the program as it is called: -d starts the daemon, else a command is read and told to it.
func control(dir string, args []string) (share.Output, error) {
	if len(args) == 1 && args[0] == "-d" {
		return startDaemon(dir)
	}
	command, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return share.Output{}, err
	}
	answer, err := tell(command)
	if err != nil {
		return share.Output{Stdout: "Cannot find MPS control daemon process\n", ExitCode: 1}, nil //nolint:nilerr // it is what the tool says
	}
	return share.Output{Stdout: answer}, nil
}

func tell(command string) (string, error) {
	conn, err := net.Dial("unix", pipe())
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // what counts was read
	if _, err := fmt.Fprintln(conn, strings.TrimSpace(command)); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// startDaemon starts the daemon in a session of its own and waits until it listens.
func startDaemon(dir string) (share.Output, error) {
	if _, err := tell("get_server_list"); err == nil {
		return share.Output{Stdout: "An instance of this daemon is already running\n", ExitCode: 1}, nil
	}
	if err := os.Remove(pipe()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return share.Output{Stdout: "Failed to create the pipe\n", ExitCode: 1}, nil //nolint:nilerr // it is what the tool says
	}
	cmd := exec.Command(filepath.Join(dir, "mps", controlProgram), "-d")
	cmd.Args[0] = controlProgram
	cmd.Env = append(os.Environ(), daemonVariable+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return share.Output{}, err
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(pipe()); err == nil {
			return share.Output{}, nil
		}
	}
	return share.Output{Stdout: "the daemon does not listen\n", ExitCode: 1}, nil
}

// runDaemon is the daemon, until it is told to quit.
func runDaemon() error {
	l, err := net.Listen("unix", pipe())
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if quit := answer(conn); quit {
			return l.Close() // removes the pipe
		}
	}
}

// answer does one command; the only one of consequence is to quit. One that breaks off says nothing.
func answer(conn net.Conn) (quit bool) {
	defer conn.Close() //nolint:errcheck // nobody reads on
	command, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.HasPrefix(command, "quit")
}

// daemon is one that runs.
type daemon struct {
	pid  int
	card string
}

// daemons are those of this machine.
func daemons(dir string) ([]daemon, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	var out []daemon
	for _, path := range paths {
		comm, err := os.ReadFile(filepath.Join(filepath.Dir(path), "comm"))
		if err != nil || !strings.HasPrefix(string(comm), controlProgram[:15]) {
			continue // it is another, or has ended
		}
		environ, err := os.ReadFile(path)
		pid, number := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || number != nil {
			continue
		}
		d := daemon{pid: pid}
		own := false
		for entry := range strings.SplitSeq(string(environ), "\x00") {
			name, value, _ := strings.Cut(entry, "=")
			own = own || name == daemonVariable && value == dir
			if name == "CUDA_VISIBLE_DEVICES" {
				d.card = value
			}
		}
		if own {
			out = append(out, d)
		}
	}
	return out, nil
}
