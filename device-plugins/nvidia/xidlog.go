package nvidia

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

// xidLine is what the driver writes into the kernel's log. In MIG mode the place names the instances too:
// "NVRM: Xid (PCI:0000:98:00 GPU-I:05 GPU-CI:00): 31, pid=…"; old drivers leave out "PCI:".
// Source: NVIDIA/open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/rc/kernel_rc.c.
var xidLine = regexp.MustCompile(`^NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?(?: GPU-I:(\d{1,4}))?[^)]*\): (\d{1,5})\b`)

// logRecord begins a record of /dev/kmsg: priority with facility, number, time, and more.
var logRecord = regexp.MustCompile(`^(\d{1,9}),\d+,\d+,[^;]*;`)

// parseXid reads one line of the kernel's log: a record of /dev/kmsg, or a line of the journal or of dmesg. A record that
// was not written by the kernel itself is not believed.
func parseXid(line string) (event, bool) {
	if record := logRecord.FindStringSubmatch(line); record != nil {
		if priority, err := strconv.Atoi(record[1]); err != nil || priority > 7 { // the facility of the kernel is 0
			return event{}, false
		}
		line = line[len(record[0]):]
	} else if at := strings.Index(line, "NVRM: Xid ("); at >= 0 {
		line = line[at:]
	}
	m := xidLine.FindStringSubmatch(line)
	if m == nil {
		return event{}, false
	}
	xid := whole(m[3])
	place := pciAddress(m[1] + ".0")
	if xid == nil || *xid == 0 || place == "" {
		return event{}, false
	}
	return event{pci: place, xid: *xid, gi: whole(m[2])}, true
}

const (
	logChunk   = 16 << 10 // no record of the kernel is longer
	logRecords = 4096     // of one reading: a driver in trouble writes without end
)

// A kernelLog hears of Xids where the library does not tell of them. What was written before its first reading is old
// and not told.
type kernelLog struct {
	path string // empty where there is none
	tail tail
	rest []byte // of a line that is not complete yet
}

// newKernelLog is the log of the machine under root. A machine that is played again has none.
func newKernelLog(cfg Config) kernelLog {
	if cfg.Files.Valid() {
		return kernelLog{}
	}
	return kernelLog{path: hostfs.New(cfg.Root).Path("dev/kmsg")}
}

// read takes what was written since the last reading and never waits. It tells whether the log can be read.
func (l *kernelLog) read() (events []event, ok bool) {
	if l.path == "" || !l.tail.open(l.path) {
		return nil, false
	}
	for range logRecords {
		chunk, more := l.tail.next()
		l.rest = append(l.rest, chunk...)
		for {
			line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
			if !whole {
				break
			}
			l.rest = rest
			if e, isXid := parseXid(string(line)); isXid && len(events) < maxEvents && !slices.ContainsFunc(events, e.repeats) {
				events = append(events, e)
			}
		}
		if len(l.rest) > logChunk {
			l.rest = nil // no line of a log
		}
		if !more {
			break
		}
	}
	l.rest = bytes.Clone(l.rest) // not the whole of what was read
	return events, true
}

// repeats tells whether two events of one reading say the same.
func (e event) repeats(o event) bool {
	return e.pci == o.pci && e.uuid == o.uuid && e.xid == o.xid && (e.gi == nil) == (o.gi == nil) && (e.gi == nil || *e.gi == *o.gi)
}
