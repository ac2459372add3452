//go:build cgo

package nvidia

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// withoutNVML is the note of a build that cannot use the library; this one can.
const withoutNVML = ""

var errNVMLAbsent = errors.New("the NVML library is not installed")

// A library is NVML with what is remembered between readings. One call is inside it at a time, so that it is never
// unloaded while an abandoned call may still use it.
type library struct {
	open func() nvml.Interface

	mu    sync.Mutex
	lib   nvml.Interface // nil before the first reading
	ready bool           // it was initialised, and no reading failed since
	watch watch
}

// shared is the machine's one library, for all detectors.
var shared = &library{open: func() nvml.Interface { return nvml.New() }}

// nvmlReport reads everything by NVML. errNVMLAbsent says that there is no library here.
func nvmlReport() (report, error) { return shared.report() }

// report reads everything. Where the library is lost, after the driver was reloaded or the agent was denied its devices,
// it is begun anew at the next reading, as often as it takes.
func (l *library) report() (report, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lib == nil {
		l.lib = l.open()
	}
	if !l.ready {
		switch ret := l.lib.Init(); ret {
		case nvml.SUCCESS:
			l.ready = true
		case nvml.ERROR_LIBRARY_NOT_FOUND:
			return report{}, errNVMLAbsent
		default:
			return report{}, fmt.Errorf("start nvml: %s", nvml.ErrorString(ret))
		}
	}
	r, ret := readNVML(l.lib)
	if ret != nvml.SUCCESS {
		why := fmt.Errorf("count cards by nvml: %s", nvml.ErrorString(ret))
		l.ready, l.watch = false, watch{} // its handles died with it
		if ret := l.lib.Shutdown(); ret != nvml.SUCCESS && ret != nvml.ERROR_UNINITIALIZED {
			why = fmt.Errorf("%w; end nvml: %s", why, nvml.ErrorString(ret))
		}
		return report{}, why
	}
	r.events = l.watch.events(l.lib, r)
	r.apart()
	return r, nil
}

func readNVML(lib nvml.Interface) (report, nvml.Return) {
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return report{}, ret
	}
	r := report{processesKnown: true}
	if v, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		r.driver = v
	}
	for i := range count {
		index := i
		d, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			r.gpus = append(r.gpus, gpu{index: &index, dead: "NVML: " + nvml.ErrorString(ret)})
			continue
		}
		g := nvmlGPU(d)
		g.nvmlMore(lib, d)
		g.index = &index
		r.gpus = append(r.gpus, g)
		processes, ret := d.GetComputeRunningProcesses()
		if ret != nvml.SUCCESS {
			r.processesKnown = false
		}
		for _, p := range processes {
			r.processes = append(r.processes, process{uuid: g.uuid, index: &index, pid: int(p.Pid)})
		}
	}
	return r, nvml.SUCCESS
}

func nvmlGPU(d nvml.Device) gpu {
	var g gpu
	var ret nvml.Return
	if g.uuid, ret = d.GetUUID(); ret != nvml.SUCCESS {
		g.uuid = ""
	}
	if name, ret := d.GetName(); ret == nvml.SUCCESS {
		g.name = text(name)
	} else if ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED {
		g.dead = "NVML: " + nvml.ErrorString(ret)
	}
	g.pci = nvmlPCI(d)
	if n, ret := d.GetMinorNumber(); ret == nvml.SUCCESS {
		g.minor = &n
	}
	switch m, ret := d.GetMemoryInfo(); ret {
	case nvml.SUCCESS:
		g.memory, g.memoryUsed = bytesMiB(m.Total, false), bytesMiB(m.Used, true)
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		g.dead = "NVML: " + nvml.ErrorString(ret)
	}
	g.nvmlLive(d)
	if current, _, ret := d.GetMigMode(); ret == nvml.SUCCESS {
		on := current == nvml.DEVICE_MIG_ENABLE
		g.migMode = &on
		if on {
			g.migs = nvmlPartitions(d)
		}
	}
	return g
}

// nvmlPCI is the address of a board, empty when the library does not tell.
func nvmlPCI(d nvml.Device) string {
	p, ret := d.GetPciInfo()
	if ret != nvml.SUCCESS {
		return ""
	}
	return cmp.Or(pciAddress(cString(p.BusId[:])), pciAddress(cString(p.BusIdLegacy[:])))
}

// nvmlLive reads the numbers that change. In MIG mode the library refuses some of them, which leaves them unknown.
func (g *gpu) nvmlLive(d nvml.Device) {
	if u, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS {
		v := float64(u.Gpu)
		g.utilization = &v
	}
	if t, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		v := float64(t)
		g.temperature = &v
	}
	if mw, ret := d.GetPowerUsage(); ret == nvml.SUCCESS {
		v := float64(mw) / 1000
		g.power = &v
	}
	if mw, ret := d.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		v := float64(mw) / 1000
		g.powerOf = &v
	}
}

func nvmlPartitions(d nvml.Device) []mig {
	count, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var migs []mig
	for i := range count {
		p, ret := d.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // most places are empty
		}
		m := mig{device: i}
		if uuid, ret := p.GetUUID(); ret == nvml.SUCCESS {
			m.uuid = uuid
		}
		if name, ret := p.GetName(); ret == nvml.SUCCESS { // "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
			if _, profile, ok := strings.Cut(name, " MIG "); ok {
				m.profile = strings.TrimSpace(profile)
			}
		}
		if id, ret := p.GetGpuInstanceId(); ret == nvml.SUCCESS {
			m.gi = &id
		}
		if id, ret := p.GetComputeInstanceId(); ret == nvml.SUCCESS {
			m.ci = &id
		}
		if mem, ret := p.GetMemoryInfo(); ret == nvml.SUCCESS {
			m.memory, m.memoryUsed = bytesMiB(mem.Total, false), bytesMiB(mem.Used, true)
		}
		migs = append(migs, m)
	}
	return migs
}

// bytesMiB converts at the edge. Totals round down, so that no more is offered than there is; use rounds up.
func bytesMiB(b uint64, up bool) *uint64 {
	v := b >> 20
	if up && b&(1<<20-1) != 0 {
		v++
	}
	return &v
}

// cString reads a text of fixed length that ends at its first zero, whatever integer type the library declares for it.
func cString[T ~int8 | ~uint8](b []T) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}
