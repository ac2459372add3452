package nvidiatest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// daemon is a process of MPS.
type daemon struct {
	pid     int
	program string // nvidia-cuda-mps-control or nvidia-cuda-mps-server
	env     map[string]string
	deaf    bool // it does not do what it is told by its pipe
	tough   bool // it ignores SIGTERM
}

func (d daemon) proc() string { return fmt.Sprintf("/proc/%d", d.pid) }

const controlProgram = "nvidia-cuda-mps-control"

// defaultPipe is where the daemon keeps its pipe when it is not told.
const defaultPipe = "/tmp/nvidia-mps"

func (d daemon) pipe() string {
	if dir := d.env["CUDA_MPS_PIPE_DIRECTORY"]; dir != "" {
		return dir
	}
	return defaultPipe
}

// StartMPS starts a control daemon as a stranger does.
func (m *Machine) StartMPS(env map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start(controlProgram, env)
}

// StartServer starts a server that a control daemon has left.
func (m *Machine) StartServer(env map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start("nvidia-cuda-mps-server", env)
}

// KillMPS kills every control daemon, as kill -9 does: the pipe stays.
func (m *Machine) KillMPS() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.daemons = slices.DeleteFunc(m.daemons, func(d daemon) bool {
		if d.program == controlProgram {
			m.remove(d.proc())
		}
		return d.program == controlProgram
	})
}

// Deafen makes the control daemons that run ignore what they are told; tough ones ignore SIGTERM too.
func (m *Machine) Deafen(tough bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.daemons {
		m.daemons[i].deaf, m.daemons[i].tough = true, tough
	}
}

// Break makes a program print an error and do nothing, or mends it.
func (m *Machine) Break(program string, broken bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop[program] = broken
}

// Daemons lists the processes of MPS, such as "nvidia-cuda-mps-control on GPU-1 at /tmp/nvidia-mps".
func (m *Machine) Daemons() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, d := range m.daemons {
		cards := "every card"
		if v, set := d.env["CUDA_VISIBLE_DEVICES"]; set {
			cards = v
		}
		out = append(out, fmt.Sprintf("%s on %s at %s", d.program, cards, d.pipe()))
	}
	slices.Sort(out)
	return out
}

func (m *Machine) start(program string, env map[string]string) {
	m.pid++
	d := daemon{pid: m.pid, program: program, env: env}
	m.daemons = append(m.daemons, d)
	var environ strings.Builder
	for name, value := range env {
		environ.WriteString(name + "=" + value + "\x00")
	}
	args := program + "\x00-d\x00"
	if program != controlProgram {
		args = "/usr/bin/" + program + "\x00"
	}
	m.write(d.proc()+"/cmdline", args)
	m.write(d.proc()+"/environ", environ.String())
	m.write(d.proc()+"/comm", program[:15]+"\n")
	if program == controlProgram {
		m.write(d.pipe()+"/control", "")
	}
}

// stop ends the process and cleans up its pipe.
func (m *Machine) stop(at int) {
	d := m.daemons[at]
	m.remove(d.proc())
	if d.program == controlProgram {
		m.remove(d.pipe() + "/control")
	}
	m.daemons = slices.Delete(m.daemons, at, at+1)
}

// env runs a program in an environment: VAR=value… program args….
func (m *Machine) env(args []string) share.Output {
	m.mu.Lock()
	defer m.mu.Unlock()
	set := map[string]string{}
	for len(args) > 0 {
		name, value, ok := strings.Cut(args[0], "=")
		if !ok {
			break
		}
		set[name], args = value, args[1:]
	}
	switch {
	case len(args) >= 2 && args[0] == controlProgram && args[1] == "-d":
		return m.startControl(set)
	case len(args) == 5 && args[0] == "sh" && args[1] == "-c" && strings.Contains(args[2], controlProgram):
		return m.tell(daemon{env: set}.pipe(), args[4])
	}
	return failed(127, "env: no such program\n")
}

func (m *Machine) startControl(env map[string]string) share.Output {
	if m.drop[controlProgram] {
		return failed(1, "Cannot start the MPS control daemon: permission denied\n")
	}
	pipe := daemon{env: env}.pipe()
	if m.at(pipe) >= 0 {
		return failed(1, "An instance of this daemon is already running\n")
	}
	if info, err := os.Stat(filepath.Join(m.Root, pipe)); err != nil || !info.IsDir() {
		return failed(1, "Failed to create the pipe directory\n")
	}
	m.start(controlProgram, env)
	return said("")
}

// at is the control daemon that listens at a pipe.
func (m *Machine) at(pipe string) int {
	return slices.IndexFunc(m.daemons, func(d daemon) bool { return d.program == controlProgram && d.pipe() == pipe })
}

// tell is a command on the daemon's pipe.
func (m *Machine) tell(pipe, command string) share.Output {
	at := m.at(pipe)
	if _, err := os.Stat(filepath.Join(m.Root, pipe, "control")); err != nil || at < 0 {
		return failed(1, "Cannot find MPS control daemon process\n")
	}
	switch verb, _, _ := strings.Cut(command, " "); {
	case m.daemons[at].deaf:
		return failed(1, "Failed to send command: connection timed out\n")
	case verb == "quit":
		for i := len(m.daemons) - 1; i >= 0; i-- { // its servers too
			if m.daemons[i].pipe() == pipe {
				m.stop(i)
			}
		}
		return said("")
	case verb == "get_server_list":
		var out strings.Builder
		for _, d := range m.daemons {
			if d.program != controlProgram && d.pipe() == pipe {
				fmt.Fprintln(&out, d.pid)
			}
		}
		return said(out.String())
	}
	return failed(1, "unknown command\n")
}

// control is the program called without env.
func (m *Machine) control([]string) share.Output { return failed(1, "the fake is called by env\n") }

// kill sends a signal: -TERM or -KILL, then a pid.
func (m *Machine) kill(args []string) share.Output {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(args) != 2 {
		return failed(2, "usage\n")
	}
	at := slices.IndexFunc(m.daemons, func(d daemon) bool { return d.pid == number(args[1]) })
	if at < 0 {
		return failed(1, fmt.Sprintf("kill: (%s) - No such process\n", args[1]))
	}
	if args[0] == "-KILL" || !m.daemons[at].tough {
		m.stop(at)
	}
	return said("")
}
