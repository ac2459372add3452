package vendorcli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// endWithUs has the kernel kill a tool when this process ends, however it ends: a tool that hangs would stay for ever, one
// more at every restart of the plugin, and keep the driver from being unloaded. What the tool itself started is not killed so:
// see EndOrphans. The kernel goes by the thread that started the tool: see Run.
func endWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// endGroup waits for the end of a tool and kills what it leaves behind in its group, before the number of the group can be
// another's.
func endGroup(pid int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil {
			syscall.Kill(-pid, syscall.SIGKILL) //nolint:errcheck // nobody is left but the tool, mostly
		}
		return
	}
}

// markName is the variable by which all that a tool starts can be told later, whoever started it.
const markName = "HETEROFLOW_TOOL_OF"

// mark names this process for its tools: the namespace that numbers it, its number, the time of its start, by which it is told
// from a later one of the same number, and its session.
var mark = sync.OnceValue(func() []string {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	_, session, start, ok := stat(os.Getpid())
	if err != nil || !ok {
		return nil // what tools leave behind cannot be told then
	}
	return []string{fmt.Sprintf("%s=%s/%d/%s/%s", markName, namespace, os.Getpid(), start, session)}
})

// stat is the state of a process, its session and the time of its start in ticks since the machine's. Not ok when there is no
// such process.
func stat(pid int) (state, session, start string, ok bool) {
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", "", false
	}
	// The name in brackets may hold anything: the fields behind it are counted, from the third on.
	fields := strings.Fields(string(body[bytes.LastIndexByte(body, ')')+1:]))
	const third, sessionAt, startAt = 3, 6, 22
	if len(fields) <= startAt-third {
		return "", "", "", false
	}
	return fields[0], fields[sessionAt-third], fields[startAt-third], true
}

// EndOrphans kills what tools of this program left behind when it was killed: processes that bear the mark of one that is no
// more. One with a session of its own was meant to stay, and is left alone. It returns how many were killed.
func EndOrphans() int {
	own := mark()
	if len(own) == 0 {
		return 0
	}
	paths, _ := filepath.Glob("/proc/[0-9]*/environ") //nolint:errcheck // the pattern is good
	killed := 0
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		environ, readErr := os.ReadFile(path) // of a process that is ours, or that this one may look into
		if err != nil || readErr != nil || pid == os.Getpid() {
			continue
		}
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.HasPrefix(entry, []byte(markName+"=")) && orphan(pid, string(entry), own[0]) && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	return killed
}

// orphan tells whether a process with a mark is one whose owner is no more. Own is the mark of this process.
func orphan(pid int, marked, own string) bool {
	// A namespace is written as pid:[4026531836]: it has no slash.
	theirs, mine := strings.Split(marked, "/"), strings.Split(own, "/")
	if len(theirs) != len(mine) || theirs[0] != mine[0] {
		return false
	}
	_, session, _, alive := stat(pid)
	owner, err := strconv.Atoi(theirs[1])
	if err != nil || !alive || session != theirs[3] {
		return false
	}
	state, _, start, there := stat(owner)
	return !there || start != theirs[2] || state == "Z" || state == "X"
}
