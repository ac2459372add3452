package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Stat is what /proc says about one process.
type Stat struct {
	PID, Parent, Group, Session int
	State                       byte   // as in ps: R, S, D, Z, …
	UserTicks, SystemTicks      uint64 // 1/100 s each
	Start                       uint64 // clock ticks since boot
	RSSPages                    uint64
}

// ReadStat reads /proc/<pid>/stat.
func ReadStat(pid int) (Stat, error) {
	body, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	return parseStat(body)
}

// parseStat reads the line of proc_pid_stat(5). The command name in brackets may itself hold brackets and
// blanks, so that counting starts behind the last one.
func parseStat(body []byte) (Stat, error) {
	open, end := bytes.IndexByte(body, '('), bytes.LastIndexByte(body, ')')
	if open < 1 || end < open {
		return Stat{}, errors.New("process status has no command")
	}
	fields := strings.Fields(string(body[end+1:]))
	if len(fields) < 22 {
		return Stat{}, fmt.Errorf("process status has %d fields", len(fields))
	}
	numbers := make([]uint64, 22)
	for i, f := range fields[1:22] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || n < 0 {
			n = 0 // fields that may be negative or larger (tpgid, nice, rsslim) are not read here
		}
		numbers[i+1] = uint64(n)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(body[:open])))
	if err != nil {
		return Stat{}, fmt.Errorf("process status: %w", err)
	}
	return Stat{
		PID: pid, State: fields[0][0], Parent: int(numbers[1]), Group: int(numbers[2]), Session: int(numbers[3]),
		UserTicks: numbers[11], SystemTicks: numbers[12], Start: numbers[19], RSSPages: numbers[21],
	}, nil
}

// ProcOf records a process that runs now.
func ProcOf(pid int) (Proc, error) {
	stat, err := ReadStat(pid)
	if err != nil {
		return Proc{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return Proc{PID: pid, Start: stat.Start, Boot: bootID()}, nil
}

// Alive reports whether this very process, not a later one with its pid, still runs. A zombie does not.
func (p Proc) Alive() bool {
	if p.PID <= 0 || p.Boot != bootID() {
		return false
	}
	stat, err := ReadStat(p.PID)
	return err == nil && stat.Start == p.Start && stat.State != 'Z' && stat.State != 'X'
}

// ThisBoot reports whether the process was recorded since the machine was started.
func (p Proc) ThisBoot() bool { return p.Boot == bootID() }

// Session lists the living processes of the session that the process leads, also after the leader itself has
// gone. It is empty after a reboot or when the pid was given to a process that started later.
func (p Proc) Session() []Stat {
	if p.PID <= 1 || p.Boot != bootID() {
		return nil
	}
	var members []int
	for _, pid := range allPIDs() {
		if sessionOf(pid) == p.PID {
			members = append(members, pid)
		}
	}
	return p.among(members)
}

// among reads those of the processes that live and belong to the session.
func (p Proc) among(pids []int) []Stat {
	var all []Stat
	for _, pid := range pids {
		stat, err := ReadStat(pid)
		if err != nil || stat.Session != p.PID || stat.State == 'Z' || stat.State == 'X' {
			continue
		}
		if stat.PID == p.PID && stat.Start != p.Start {
			return nil // another process has the pid now: its session is not ours
		}
		all = append(all, stat)
	}
	return all
}

// allPIDs are the processes of this machine, in no order.
func allPIDs() []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close() //nolint:errcheck // read only
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// KillSession kills every process of the session the process leads until none is left.
func (p Proc) KillSession() {
	for range 100 {
		left := p.Session()
		if len(left) == 0 {
			return
		}
		for _, s := range left {
			one := Proc{PID: s.PID, Start: s.Start, Boot: p.Boot}
			if err := one.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return // not permitted: trying again changes nothing
			}
		}
		pause()
	}
}

// bootID names the time since the kernel was started, which no process outlives.
var bootID = sync.OnceValue(func() string {
	body, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(body))
})
