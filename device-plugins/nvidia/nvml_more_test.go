//go:build cgo

package nvidia

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// condition is how well a board of the mock is. What is nil it does not tell.
type condition struct {
	reasons  uint64
	remapped *[2]int // corrected and uncorrected rows
	pending  bool
	fields   map[uint32]uint32
	links    []bool // whether each NVLink is up
	lost     bool
}

// unwell adds the calls by which a board tells its condition, which can be changed while the test runs.
func unwell(d *server.Device, c *condition) {
	d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return 5000, nvml.SUCCESS }
	d.GetClockInfoFunc = func(kind nvml.ClockType) (uint32, nvml.Return) {
		if kind == nvml.CLOCK_SM {
			return 1410, nvml.SUCCESS
		}
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetFanSpeedFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetPcieReplayCounterFunc = func() (int, nvml.Return) { return 3, nvml.SUCCESS }
	d.GetTotalEccErrorsFunc = func(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
		return uint64(kind), nvml.SUCCESS
	}
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return c.reasons, nvml.SUCCESS }
	d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) {
		if c.remapped == nil {
			return 0, 0, false, false, nvml.ERROR_NOT_SUPPORTED
		}
		return c.remapped[0], c.remapped[1], c.pending, false, nvml.SUCCESS
	}
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		for i := range values {
			v, ok := c.fields[values[i].FieldId]
			if !ok {
				values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				continue
			}
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			binary.NativeEndian.PutUint32(values[i].Value[:], v)
		}
		return nvml.SUCCESS
	}
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		if link >= len(c.links) {
			return nvml.FEATURE_DISABLED, nvml.ERROR_INVALID_ARGUMENT
		}
		if c.links[link] {
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		return nvml.FEATURE_DISABLED, nvml.SUCCESS
	}
	d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeXidCriticalError, nvml.SUCCESS }
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	memory := d.GetMemoryInfoFunc
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
		if c.lost {
			return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST
		}
		return memory()
	}
}

// events lets a test send Xids through the event sets of a mock.
type events struct {
	queue       []nvml.EventData
	made, freed int
}

func sends(s *server.Server) *events {
	e := &events{}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		e.made++
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { e.freed++; return nvml.SUCCESS },
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				if len(e.queue) == 0 {
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
				next := e.queue[0]
				e.queue = e.queue[1:]
				return next, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	return e
}

func (e *events) xid(d nvml.Device, xid uint64, gi uint32) {
	e.queue = append(e.queue, nvml.EventData{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: xid, GpuInstanceId: gi})
}

// byLibrary is a detector with a library of its own on a machine without nvidia-smi.
func byLibrary(t *testing.T, root string, s *server.Server) *Detector {
	t.Helper()
	cfg := device.DefaultConfig()
	d := New(Config{Root: root, SMI: "no-such-nvidia-smi", XidHardware: cfg.XidHardware, XidApplication: cfg.XidApplication}, hclog.NewNullLogger())
	l := &library{open: func() nvml.Interface { return s }}
	d.nvml = l.report
	return d
}

func detect(t *testing.T, d *Detector) []accel.Card {
	t.Helper()
	cards, err := d.Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return cards
}

func sick(cards []accel.Card) []string {
	var out []string
	for _, c := range cards {
		if !c.Health.OK {
			out = append(out, c.UUID+": "+c.Health.Reason)
		}
	}
	return out
}

func TestNVML_LostWhileRunningIsNotAHealthyNode(t *testing.T) {
	t.Parallel()
	s := box()
	sends(s)
	inits, ends := 0, 0
	state := nvml.SUCCESS
	s.InitFunc = func() nvml.Return { inits++; return state }
	s.ShutdownFunc = func() nvml.Return { ends++; return nvml.SUCCESS }
	count := s.DeviceGetCountFunc
	s.DeviceGetCountFunc = func() (int, nvml.Return) {
		if state != nvml.SUCCESS {
			return 0, state
		}
		return count()
	}
	root := t.TempDir()
	brandtest.Bus(t, root, s.Devices[0].(*server.Device).PciBusID, "10de", "20b0", "nvidia", "a1")
	d, blind := byLibrary(t, root, s), byLibrary(t, t.TempDir(), s)
	if got := sick(detect(t, d)); got != nil {
		t.Fatalf("sick at the start: %v", got)
	}
	detect(t, blind)

	state = nvml.ERROR_UNKNOWN
	for range 2 {
		// The kernel still lists the card; without the library it cannot be used all the same.
		if got := detect(t, d); len(got) != 1 || got[0].Health.OK || !strings.Contains(got[0].Health.Reason, "nvml") {
			t.Errorf("cards %+v", got)
		}
		if _, err := blind.Detect(context.Background()); err == nil || !strings.Contains(err.Error(), "nvml") {
			t.Errorf("nothing tells that the cards are lost: %v", err)
		}
	}
	if ends != 2 || inits < 4 {
		t.Errorf("begun %d times and ended %d times", inits, ends)
	}
	state = nvml.SUCCESS
	if got := detect(t, d); len(got) != 8 || sick(got) != nil {
		t.Errorf("does not recover: %v", sick(got))
	}
}

func TestNVML_DriverInstalledLaterIsFoundByTheNextReading(t *testing.T) {
	t.Parallel()
	s := box()
	sends(s)
	installed := false
	s.InitFunc = func() nvml.Return {
		if !installed {
			return nvml.ERROR_LIBRARY_NOT_FOUND
		}
		return nvml.SUCCESS
	}
	d := byLibrary(t, t.TempDir(), s)
	if got := detect(t, d); len(got) != 0 {
		t.Fatalf("cards %v", got)
	}
	installed = true
	if got := detect(t, d); len(got) != 8 {
		t.Errorf("%d cards", len(got))
	}
}

func TestNVML_XidsBlameTheJobOrTheCard(t *testing.T) {
	t.Parallel()
	s := box()
	e := sends(s)
	d := byLibrary(t, t.TempDir(), s)
	card := s.Devices[3].(*server.Device)
	detect(t, d)
	for xid, want := range map[uint64]device.Blame{
		13: device.BlameJob, 31: device.BlameJob, 43: device.BlameJob, 45: device.BlameJob, 68: device.BlameJob, 69: device.BlameJob, 109: device.BlameJob,
		48: device.BlameCard, 62: device.BlameCard, 63: device.BlameCard, 64: device.BlameCard, 74: device.BlameCard, 79: device.BlameCard,
		92: device.BlameCard, 94: device.BlameCard, 95: device.BlameCard, 119: device.BlameCard, 120: device.BlameCard,
		32: device.BlameNobody, 9999: device.BlameNobody,
	} {
		e.xid(card, xid, noInstance)
		e.xid(card, xid, noInstance) // every thread of a program may make the same error
		if got := sick(detect(t, d)); got != nil {
			t.Errorf("Xid %d: a board that works again at once is listed as %v", xid, got)
		}
		got := d.Events()
		if len(got) != 1 || got[0].Card != card.UUID || got[0].Blame != want || !strings.HasPrefix(got[0].Text, "Xid ") {
			t.Errorf("Xid %d: events %+v", xid, got)
		}
	}
	if got := d.Events(); got == nil || len(got) > 0 {
		t.Errorf("told twice: %v", got)
	}
	if got := byLibrary(t, t.TempDir(), s).Events(); got != nil {
		t.Errorf("without a reading it hears %v", got)
	}
}

func TestNVML_FaultStaysUntilTheBoardNeedsNoReset(t *testing.T) {
	t.Parallel()
	s := box()
	e := sends(s)
	board, how := s.Devices[2].(*server.Device), &condition{}
	unwell(board, how)
	d := byLibrary(t, t.TempDir(), s)
	detect(t, d)

	how.fields = map[uint32]uint32{nvml.FI_DEV_GET_GPU_RECOVERY_ACTION: uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET)}
	if got := sick(detect(t, d)); got != nil {
		t.Errorf("sick without a fault: %v", got)
	}
	e.xid(board, 48, noInstance)
	for range 3 {
		if got := sick(detect(t, d)); len(got) != 1 || !strings.HasPrefix(got[0], board.UUID+": Xid 48") || !strings.Contains(got[0], "reset the card") {
			t.Errorf("sick: %v", got)
		}
	}
	how.fields = nil
	if got := sick(detect(t, d)); got != nil {
		t.Errorf("still sick after the reset: %v", got)
	}
	// Older drivers do not say what is needed: memory that waits for its repair counts.
	how.remapped, how.pending = &[2]int{1, 2}, true
	e.xid(board, 63, noInstance)
	if got := sick(detect(t, d)); len(got) != 1 {
		t.Errorf("sick: %v", got)
	}
	how.pending = false
	if got := sick(detect(t, d)); got != nil {
		t.Errorf("still sick: %v", got)
	}
}

func TestNVML_LostBoardIsWatchedAnewWhenItIsBack(t *testing.T) {
	t.Parallel()
	s := box()
	e := sends(s)
	how := &condition{}
	unwell(s.Devices[5].(*server.Device), how)
	d := byLibrary(t, t.TempDir(), s)
	for _, lost := range []bool{false, false, true, true, false} {
		how.lost = lost
		if got := sick(detect(t, d)); (len(got) == 1) != lost || len(got) > 1 {
			t.Errorf("lost %v, sick %v", lost, got)
		}
	}
	if e.made != 3 || e.freed != 2 {
		t.Errorf("%d sets made, %d freed", e.made, e.freed)
	}
}

func TestNVML_EventOfAPartition(t *testing.T) {
	t.Parallel()
	one, two, three := 1, 2, 3
	g := gpu{uuid: "GPU-a", migs: []mig{{uuid: "MIG-1", gi: &one}, {uuid: "MIG-2", gi: &two}}}
	for _, tc := range []struct {
		gi   *int
		want []string
	}{{nil, []string{"MIG-1", "MIG-2"}}, {&two, []string{"MIG-2"}}, {&three, []string{"MIG-1", "MIG-2"}}} {
		if got := g.touched(event{gi: tc.gi}); !slices.Equal(got, tc.want) {
			t.Errorf("touched %v, want %v", got, tc.want)
		}
	}
}

func TestNVML_SampleTellsWhatTheBoardTells(t *testing.T) {
	t.Parallel()
	s := box()
	sends(s)
	unwell(s.Devices[0].(*server.Device), &condition{
		reasons: nvml.ClocksEventReasonSwThermalSlowdown, remapped: &[2]int{1, 2}, pending: true,
		fields: map[uint32]uint32{
			nvml.FI_DEV_MEMORY_TEMP: 71, nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: 2, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: 3,
		},
	})
	d := byLibrary(t, t.TempDir(), s)
	cards := detect(t, d)
	samples, err := d.Sample(context.Background(), cards)
	if err != nil {
		t.Fatal(err)
	}
	f := func(v float64) *float64 { return &v }
	yes, no := true, false
	got := samples[cards[0].UUID]
	got.MemoryUsedMiB = nil
	want := device.Sample{
		UtilizationPct: f(7), MemoryUtilizationPct: f(0), TemperatureC: f(30), MemoryTemperatureC: f(71), PowerLimitW: f(400), EnergyJ: f(5),
		ClockMHz: f(1410), LinkErrors: f(5), PCIeReplays: f(3), ECCCorrected: f(0), ECCUncorrected: f(1), RemappedRows: f(3),
		RepairPending: &yes, ThermalSlowdown: &yes, PowerBrake: &no, Processes: []int{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if other := samples[cards[1].UUID]; other.MemoryTemperatureC != nil || other.RemappedRows != nil || other.LinkErrors != nil || *other.ThermalSlowdown {
		t.Errorf("unknown numbers were invented: %+v", other)
	}
}

func TestNVML_LinkDown(t *testing.T) {
	t.Parallel()
	s := box()
	conditions := map[string]*condition{}
	for _, d := range s.Devices {
		d := d.(*server.Device)
		c := &condition{links: []bool{true, true, true, false}}
		conditions[d.UUID], c.fields = c, nil
		unwell(d, c)
	}
	sends(s)
	d := byLibrary(t, t.TempDir(), s)
	cards := detect(t, d)
	down := func() string {
		t.Helper()
		samples, err := d.Sample(context.Background(), cards)
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, c := range cards {
			switch yes := samples[c.UUID].LinkDown; {
			case yes == nil:
				out += "?"
			case *yes:
				out += "d"
			default:
				out += "."
			}
		}
		return out
	}
	set := func(card int, links ...bool) { conditions[cards[card].UUID].links = links }
	want := func(what, states string) {
		t.Helper()
		if got := down(); got != states {
			t.Errorf("%s: %s, want %s", what, got, states)
		}
	}
	want("links that lead nowhere", "........")
	set(2, true, false, true, false)
	want("a link that was up", "..d.....")
	set(2, true, true, true, false)
	want("it is up again", "........")
	set(5)
	want("a board in MIG mode", ".....?..")
	for i := range cards {
		set(i, true, true, true, true)
	}
	set(3, true, true, true, false)
	want("fewer than the others, since the start", "...d....")
	set(3, false, false, false, false)
	want("all of them, which were up", "...d....")
}

func TestNVML_BoardsWithoutLinksAreNotCompared(t *testing.T) {
	t.Parallel()
	s := box()
	for i, d := range s.Devices {
		unwell(d.(*server.Device), &condition{links: []bool{i < 2, i < 2}}) // two of them have a bridge
	}
	sends(s)
	d := byLibrary(t, t.TempDir(), s)
	samples, err := d.Sample(context.Background(), detect(t, d))
	if err != nil {
		t.Fatal(err)
	}
	for uuid, sample := range samples {
		if sample.LinkDown == nil || *sample.LinkDown {
			t.Errorf("%s: %v", uuid, sample.LinkDown)
		}
	}
}

// Two boards to which the library gives one UUID are two cards: each has its own numbers, processes and faults.
func TestNVML_RepeatedUUID(t *testing.T) {
	t.Parallel()
	s := box()
	e := sends(s)
	first, second := s.Devices[2].(*server.Device), s.Devices[3].(*server.Device)
	second.UUID = first.UUID
	second.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 77, nvml.SUCCESS }
	second.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 4711}}, nvml.SUCCESS
	}
	d := byLibrary(t, t.TempDir(), s)
	cards := detect(t, d)
	if len(cards) != 8 {
		t.Fatalf("%d cards", len(cards))
	}
	samples, err := d.Sample(context.Background(), cards)
	if err != nil {
		t.Fatal(err)
	}
	processes, err := d.Processes(context.Background(), cards)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range cards[2:4] {
		v := samples[c.UUID]
		got = append(got, fmt.Sprint(c.Index, " ", c.UUID == "PCI-"+c.PCIAddress, *v.TemperatureC, v.Processes, processes[c.UUID], d.Nodes(c)))
	}
	if diff := cmp.Diff([]string{"2 true 30 [] [] [/dev/nvidia2]", "3 true 77 [4711] [4711] [/dev/nvidia3]"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	e.xid(second, 79, noInstance)
	detect(t, d)
	if got := d.Events(); len(got) != 1 || got[0].Card != cards[3].UUID {
		t.Errorf("events %+v", got)
	}
}
