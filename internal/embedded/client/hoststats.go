package client

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// cpuTimes is one reading of the kernel's counters of one processor.
type cpuTimes struct{ user, system, idle, total float64 }

// hostCPU turns two readings into percent.
type hostCPU struct {
	mu    sync.Mutex
	last  map[string]cpuTimes
	shown map[string]*api.HostCPUStats
}

// HostStats implements Backend.
func (c *Client) HostStats() (*api.HostStats, error) {
	mem, err := meminfo()
	if err != nil {
		return nil, err
	}
	cpus, err := c.cpu.read()
	if err != nil {
		return nil, err
	}
	disk, err := diskStats(c.cfg.DataDir)
	if err != nil {
		return nil, err
	}
	out := &api.HostStats{
		Memory: &api.HostMemoryStats{Total: mem["MemTotal"], Available: mem["MemAvailable"], Used: mem["MemTotal"] - mem["MemAvailable"], Free: mem["MemFree"]},
		CPU:    cpus, DiskStats: []*api.HostDiskStats{disk}, AllocDirStats: disk, DeviceStats: c.allDeviceStats(),
	}
	for _, p := range cpus {
		out.CPUTicksConsumed += (100 - p.Idle) / 100 * float64(c.machine.cpuMHz) / float64(c.machine.cores)
	}
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return nil, fmt.Errorf("ask for the uptime: %w", err)
	}
	if f := strings.Fields(string(b)); len(f) > 0 {
		up, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			return nil, fmt.Errorf("ask for the uptime: %w", err)
		}
		out.Uptime = uint64(up)
	}
	return out, nil
}

func diskStats(dir string) (*api.HostDiskStats, error) {
	disk, err := askDisk(dir)
	if err != nil {
		return nil, fmt.Errorf("ask for the disk of %s: %w", dir, err)
	}
	d := &api.HostDiskStats{Device: dir, Mountpoint: dir, Size: disk.size, Available: disk.avail, Used: disk.size - disk.free}
	if disk.size > 0 {
		d.UsedPercent = float64(d.Used) / float64(disk.size) * 100
	}
	if disk.files > 0 {
		d.InodesUsedPercent = float64(disk.files-disk.filesFree) / float64(disk.files) * 100
	}
	return d, nil
}

func (h *hostCPU) read() ([]*api.HostCPUStats, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, fmt.Errorf("ask for the processors: %w", err)
	}
	return h.load(b)
}

// load is the load since the last call, or since the boot at the first, by the content of /proc/stat. Within one tick of
// the kernel's clock there is nothing new, and what was shown last is shown again: nothing measured is not no load.
func (h *hostCPU) load(stat []byte) ([]*api.HostCPUStats, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, shown := map[string]cpuTimes{}, map[string]*api.HostCPUStats{}
	out := []*api.HostCPUStats{}
	for sc := bufio.NewScanner(bytes.NewReader(stat)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 5 || !strings.HasPrefix(f[0], "cpu") || f[0] == "cpu" {
			continue
		}
		var t cpuTimes
		for n, s := range f[1:min(len(f), 9)] {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil {
				return nil, fmt.Errorf("ask for the processors: %w", err)
			}
			t.total += v
			switch n {
			case 0, 1:
				t.user += v
			case 2, 5, 6:
				t.system += v
			case 3, 4:
				t.idle += v
			}
		}
		now[f[0]] = t
		before, s := h.last[f[0]], h.shown[f[0]]
		if d := t.total - before.total; d > 0 || s == nil {
			s = &api.HostCPUStats{CPU: f[0], Idle: 100}
			if d > 0 {
				s.User, s.System, s.Idle = (t.user-before.user)/d*100, (t.system-before.system)/d*100, (t.idle-before.idle)/d*100
			}
		}
		shown[f[0]] = s
		out = append(out, s)
	}
	h.last, h.shown = now, shown
	return out, nil
}
