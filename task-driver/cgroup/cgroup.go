// Package cgroup reads what the kernel counts for a control group: processor time, throttling and memory, in version 1 and
// version 2. Making groups, limiting them and turning counters into rates do not belong here.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Use is one reading of what a group has used. Nil is what is not counted on this machine.
type Use struct {
	At                              time.Time
	CPUTotalNS, CPUUserNS, CPUSysNS uint64 // since the group was made
	ThrottledPeriods, ThrottledNS   uint64
	MemoryUsage                     uint64 // bytes, with the page cache
	MemoryMax                       *uint64
	MemoryRSS, MemoryCache          *uint64
	MemorySwap                      *uint64
	KernelUsage, KernelMax          *uint64
}

// ErrNotOurs is returned for a process that is not in the group that it was looked for in.
var ErrNotOurs = errors.New("the process is in another control group")

// Group is one control group: a folder in version 2, one for each controller in version 1.
type Group struct {
	v2                   bool
	memory, cpu, cpuacct string
}

// Of finds the group of a process below root (/sys/fs/cgroup) by what procfs (/proc) says of it. The last part of the group's
// path must contain name, by which a process of another machine or time that has the same number is told apart: ErrNotOurs.
func Of(root, procfs string, pid int, name string) (Group, error) {
	body, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return Group{}, fmt.Errorf("find control group: %w", err)
	}
	paths := parsePaths(string(body))
	g := Group{memory: paths["memory"], cpu: paths["cpu"], cpuacct: paths["cpuacct"]}
	if g.memory == "" && g.cpu == "" && g.cpuacct == "" {
		g = Group{v2: true, memory: paths[""], cpu: paths[""], cpuacct: paths[""]}
	}
	for controller, path := range map[string]*string{"memory": &g.memory, "cpu": &g.cpu, "cpuacct": &g.cpuacct} {
		if !strings.Contains(filepath.Base(*path), name) {
			return Group{}, fmt.Errorf("find control group of process %d: %w", pid, ErrNotOurs)
		}
		if g.v2 {
			controller = ""
		}
		*path = filepath.Join(root, controller, *path)
	}
	_, err = g.Read()
	return g, err
}

// parsePaths reads lines "number:controller,…:path" of a process; that of version 2 names no controller.
func parsePaths(body string) map[string]string {
	paths := map[string]string{}
	for line := range strings.Lines(body) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		for _, controller := range strings.Split(parts[1], ",") {
			paths[controller] = parts[2]
		}
	}
	return paths
}

// tick is the unit of cpuacct.stat, fixed for user space on every architecture Go runs on.
const tick = uint64(10 * time.Millisecond)

// Read reads the group once. It fails when the group is gone.
func (g Group) Read() (Use, error) {
	r := reader{buf: buffers.Get().(*[]byte)}
	defer buffers.Put(r.buf)
	use := Use{At: time.Now().UTC()}
	if g.v2 {
		g.readV2(&r, &use)
	} else {
		g.readV1(&r, &use)
	}
	return use, r.err
}

func (g Group) readV1(r *reader, use *Use) {
	use.CPUTotalNS = r.number(g.cpuacct, "cpuacct.usage")
	each(r.file(g.cpuacct, "cpuacct.stat"), func(name []byte, n uint64) {
		switch string(name) {
		case "user":
			use.CPUUserNS = n * tick
		case "system":
			use.CPUSysNS = n * tick
		}
	})
	each(r.file(g.cpu, "cpu.stat"), func(name []byte, n uint64) {
		switch string(name) {
		case "nr_throttled":
			use.ThrottledPeriods = n
		case "throttled_time":
			use.ThrottledNS = n
		}
	})
	use.MemoryUsage = r.number(g.memory, "memory.usage_in_bytes")
	each(r.file(g.memory, "memory.stat"), func(name []byte, n uint64) {
		switch string(name) {
		case "rss":
			use.MemoryRSS = &n
		case "cache":
			use.MemoryCache = &n
		case "swap":
			use.MemorySwap = &n
		}
	})
	use.MemoryMax = r.maybe(g.memory, "memory.max_usage_in_bytes")
	use.KernelUsage = r.maybe(g.memory, "memory.kmem.usage_in_bytes")
	use.KernelMax = r.maybe(g.memory, "memory.kmem.max_usage_in_bytes")
}

func (g Group) readV2(r *reader, use *Use) {
	const us = uint64(time.Microsecond)
	each(r.file(g.cpu, "cpu.stat"), func(name []byte, n uint64) {
		switch string(name) {
		case "usage_usec":
			use.CPUTotalNS = n * us
		case "user_usec":
			use.CPUUserNS = n * us
		case "system_usec":
			use.CPUSysNS = n * us
		case "nr_throttled":
			use.ThrottledPeriods = n
		case "throttled_usec":
			use.ThrottledNS = n * us
		}
	})
	use.MemoryUsage = r.number(g.memory, "memory.current")
	each(r.file(g.memory, "memory.stat"), func(name []byte, n uint64) {
		switch string(name) {
		case "anon":
			use.MemoryRSS = &n
		case "file":
			use.MemoryCache = &n
		case "kernel": // Linux 5.18
			use.KernelUsage = &n
		}
	})
	use.MemoryMax = r.maybe(g.memory, "memory.peak") // Linux 5.19
	use.MemorySwap = r.maybe(g.memory, "memory.swap.current")
}

// each calls f for every line of a name and a number.
func each(body []byte, f func(name []byte, n uint64)) {
	for line := range bytes.Lines(body) {
		name, value, found := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		if n, ok := number(value); found && ok {
			f(name, n)
		}
	}
}

// number reads a file's one number.
func number(text []byte) (uint64, bool) {
	n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// buffers are for files of the kernel, which has them done in one reading; the longest is memory.stat with 2 KiB.
var buffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// reader reads files of a group and keeps the first error.
type reader struct {
	buf *[]byte
	err error
}

// file is a file that every group has. What it returns is good until the next call.
func (r *reader) file(folder, name string) []byte {
	body, err := readInto(*r.buf, folder+"/"+name)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("read control group: %w", err)
	}
	return body
}

// number is the number in such a file.
func (r *reader) number(folder, name string) uint64 {
	n, ok := number(r.file(folder, name))
	if !ok && r.err == nil {
		r.err = fmt.Errorf("read control group: %s holds no number", name)
	}
	return n
}

// maybe is the number in a file that not every kernel has.
func (r *reader) maybe(folder, name string) *uint64 {
	body, err := readInto(*r.buf, folder+"/"+name)
	if n, ok := number(body); err == nil && ok {
		return &n
	}
	return nil
}
