//go:build cgo

package nvidia

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// nvmlMore reads what says how well the board is. Older libraries lack some calls, and to make such a call would end the
// process: those are looked for first.
func (g *gpu) nvmlMore(lib nvml.Interface, d nvml.Device) {
	s := &g.more
	if u, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS {
		s.MemoryUtilizationPct = float(u.Memory)
	}
	if mj, ret := d.GetTotalEnergyConsumption(); ret == nvml.SUCCESS {
		s.EnergyJ = float(float64(mj) / 1000)
	}
	if mhz, ret := d.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		s.ClockMHz = float(mhz)
	}
	if mhz, ret := d.GetClockInfo(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
		s.MemoryClockMHz = float(mhz)
	}
	if pct, ret := d.GetFanSpeed(); ret == nvml.SUCCESS {
		s.FanPct = float(pct)
	}
	if n, ret := d.GetPcieReplayCounter(); ret == nvml.SUCCESS {
		s.PCIeReplays = float(n)
	}
	if n, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		s.ECCCorrected = float(n)
	}
	if n, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		s.ECCUncorrected = float(n)
	}
	g.nvmlClocks(lib, d)
	g.nvmlMemoryRepair(lib, d)
	g.nvmlFields(d)
	g.nvmlLinks(d)
}

// nvmlLinks reads which NVLinks are up. A board without them, or in MIG mode, does not say.
func (g *gpu) nvmlLinks(d nvml.Device) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(link)
		if ret != nvml.SUCCESS {
			break // there are no more
		}
		g.links = append(g.links, state == nvml.FEATURE_ENABLED)
	}
}

func float[T ~int | ~uint32 | ~uint64 | ~float64](n T) *float64 {
	v := float64(n)
	return &v
}

// nvmlClocks reads why the clocks are held down. The call has a new name since driver 535.
func (g *gpu) nvmlClocks(lib nvml.Interface, d nvml.Device) {
	read := d.GetCurrentClocksEventReasons
	if lib.Extensions().LookupSymbol("nvmlDeviceGetCurrentClocksEventReasons") != nil {
		read = d.GetCurrentClocksThrottleReasons //nolint:staticcheck // the only name that older libraries have
	}
	reasons, ret := read()
	if ret != nvml.SUCCESS {
		return
	}
	thermal := reasons&(nvml.ClocksThrottleReasonHwThermalSlowdown|nvml.ClocksEventReasonSwThermalSlowdown) != 0
	brake := reasons&nvml.ClocksThrottleReasonHwPowerBrakeSlowdown != 0
	g.more.ThermalSlowdown, g.more.PowerBrake = &thermal, &brake
}

// nvmlMemoryRepair reads what was done about bad memory: rows are remapped since Ampere, pages were retired before.
func (g *gpu) nvmlMemoryRepair(lib nvml.Interface, d nvml.Device) {
	if lib.Extensions().LookupSymbol("nvmlDeviceGetRemappedRows") == nil {
		if corrected, uncorrected, pending, _, ret := d.GetRemappedRows(); ret == nvml.SUCCESS {
			g.more.RemappedRows = float(corrected + uncorrected)
			g.more.RepairPending = &pending
		}
	}
	if state, ret := d.GetRetiredPagesPendingStatus(); ret == nvml.SUCCESS {
		pending := state == nvml.FEATURE_ENABLED || g.more.RepairPending != nil && *g.more.RepairPending
		g.more.RepairPending = &pending
	}
	g.needsReset = g.more.RepairPending != nil && *g.more.RepairPending
}

// nvmlFields reads numbers that have no call of their own. Where the board says what it needs to recover, that counts:
// https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
func (g *gpu) nvmlFields(d nvml.Device) {
	links := []uint32{nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL}
	pages := []uint32{nvml.FI_DEV_RETIRED_SBE, nvml.FI_DEV_RETIRED_DBE}
	var fields []nvml.FieldValue
	for _, id := range slices.Concat([]uint32{nvml.FI_DEV_MEMORY_TEMP, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, links, pages) {
		fields = append(fields, nvml.FieldValue{FieldId: id})
	}
	if ret := d.GetFieldValues(fields); ret != nvml.SUCCESS {
		return
	}
	sum := func(total **float64, v float64) {
		if *total != nil {
			v += **total
		}
		*total = &v
	}
	for _, f := range fields {
		v, ok := fieldNumber(f)
		switch {
		case !ok:
		case f.FieldId == nvml.FI_DEV_MEMORY_TEMP:
			if v > 0 { // boards without the sensor say 0
				g.more.MemoryTemperatureC = &v
			}
		case f.FieldId == nvml.FI_DEV_GET_GPU_RECOVERY_ACTION:
			g.needsReset = nvml.DeviceGpuRecoveryAction(v) != nvml.GPU_RECOVERY_ACTION_NONE
		case slices.Contains(links, f.FieldId):
			sum(&g.more.LinkErrors, v)
		default:
			sum(&g.more.RetiredPages, v)
		}
	}
}

// fieldNumber reads a value in the type that it is said to have.
func fieldNumber(f nvml.FieldValue) (float64, bool) {
	if nvml.Return(f.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	bits := binary.NativeEndian.Uint64(f.Value[:])
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		v := math.Float64frombits(bits)
		return v, !math.IsNaN(v)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(binary.NativeEndian.Uint32(f.Value[:4])), true
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(binary.NativeEndian.Uint32(f.Value[:4]))), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(bits), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), true
	}
	return 0, false
}

// A watch is the events that the library collects between two readings.
type watch struct {
	set     nvml.EventSet
	watched []string // the boards that are watched
}

const (
	wantedEvents = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError
	noInstance   = 0xFFFFFFFF
)

// events hands over what was collected and sees to it that every board that answers is watched. A board that came back
// from a reset is watched anew.
func (w *watch) events(lib nvml.Interface, r report) []event {
	events := w.drain()
	var names []string
	for _, g := range r.gpus {
		if g.dead == "" {
			names = append(names, g.uuid)
		}
	}
	if w.set != nil && slices.Equal(w.watched, names) {
		return events
	}
	if w.set != nil {
		if ret := w.set.Free(); ret != nvml.SUCCESS {
			return events // try again at the next reading
		}
		*w = watch{}
	}
	set, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return events
	}
	w.set = set
	for _, g := range r.gpus {
		if g.dead == "" && register(lib, *g.index, set) {
			w.watched = append(w.watched, g.uuid)
		}
	}
	return events
}

// register has a board report its events. A board that supports none is judged by its readings alone; false says that it
// is worth another try.
func register(lib nvml.Interface, index int, set nvml.EventSet) bool {
	d, ret := lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return false
	}
	types, ret := d.GetSupportedEventTypes()
	if types &= wantedEvents; ret != nvml.SUCCESS || types == 0 {
		return ret == nvml.SUCCESS || ret == nvml.ERROR_NOT_SUPPORTED
	}
	ret = d.RegisterEvents(types, set)
	return ret == nvml.SUCCESS || ret == nvml.ERROR_NOT_SUPPORTED
}

// drain takes what was collected, without waiting for more.
func (w *watch) drain() []event {
	var events []event
	for w.set != nil && len(events) < maxEvents {
		data, ret := w.set.Wait(0)
		if ret != nvml.SUCCESS {
			break // nothing more, or a board fell off the bus, which its reading tells
		}
		e := event{xid: int(data.EventData)}
		if data.EventType != nvml.EventTypeXidCriticalError {
			e.xid = xidDoubleBit // the same error, for a library that does not send its Xid
		}
		var ok nvml.Return
		if e.uuid, ok = data.Device.GetUUID(); ok != nvml.SUCCESS {
			continue // nobody to blame: the reading tells which board is lost
		}
		e.pci = nvmlPCI(data.Device)
		if data.GpuInstanceId != noInstance {
			gi := int(data.GpuInstanceId)
			e.gi = &gi
		}
		if !slices.ContainsFunc(events, func(o event) bool { return o.uuid == e.uuid && o.pci == e.pci && o.xid == e.xid }) {
			events = append(events, e)
		}
	}
	return events
}

// xidDoubleBit is a memory error that cannot be corrected.
const xidDoubleBit = 48
