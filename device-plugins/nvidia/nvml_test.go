//go:build cgo

package nvidia

import (
	"context"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// box is go-nvml's DGX A100 with the calls added that its mock leaves out.
func box() *server.Server {
	s := dgxa100.New()
	for _, d := range s.Devices {
		d := d.(*server.Device)
		d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			var p nvml.PciInfo
			for i, c := range "0000" + d.PciBusID {
				p.BusId[i] = int8(c)
			}
			return p, nvml.SUCCESS
		}
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 7}, nvml.SUCCESS }
		d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 30, nvml.SUCCESS }
		d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		d.GetEnforcedPowerLimitFunc = func() (uint32, nvml.Return) { return 400000, nvml.SUCCESS }
		unwell(d, &condition{})
		d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	}
	return s
}

func byNVML(t testing.TB, s *server.Server) *Detector {
	t.Helper()
	d := New(Config{Root: t.TempDir(), SMI: "no-such-nvidia-smi"}, hclog.NewNullLogger())
	d.nvml = func() (report, error) {
		r, ret := readNVML(s)
		if ret != nvml.SUCCESS {
			t.Errorf("read: %v", ret)
		}
		return r, nil
	}
	return d
}

func TestNVML_DGXA100(t *testing.T) {
	t.Parallel()
	s := box()
	d := byNVML(t, s)
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 8 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	for i, c := range cards {
		mine := s.Devices[i].(*server.Device)
		if c.UUID != mine.UUID || c.PCIAddress != mine.PciBusID || c.Index != i || !c.Health.OK {
			t.Errorf("card %d: %+v", i, c)
		}
		if c.MemoryMiB == nil || *c.MemoryMiB != mine.Config.MemoryMB || c.DriverVersion != "550.54.15" || c.Sources[accel.AttrMemory] != "nvml" {
			t.Errorf("card %d: %+v", i, c)
		}
	}
	samples, err := d.Sample(context.Background(), cards)
	if err != nil {
		t.Fatal(err)
	}
	if v := samples[cards[3].UUID]; *v.UtilizationPct != 7 || *v.TemperatureC != 30 || v.PowerW != nil || *v.PowerLimitW != 400 {
		t.Errorf("sample %+v", v)
	}
	if got := d.Nodes(cards[3]); len(got) != 1 || got[0] != "/dev/nvidia3" {
		t.Errorf("nodes %v", got)
	}
}

func TestNVML_LostCardDoesNotHideItsNeighbours(t *testing.T) {
	t.Parallel()
	s := box()
	get := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 4 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return get(i)
	}
	broken := s.Devices[5].(*server.Device)
	broken.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	cards, err := byNVML(t, s).Detect(context.Background())
	if err != nil || len(cards) != 8 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	for i, c := range cards {
		if c.Health.OK == (i == 4 || i == 5) {
			t.Errorf("card %d: %+v", i, c.Health)
		}
	}
	if cards[4].UUID != "INDEX-4" || cards[5].MemoryMiB != nil {
		t.Errorf("cards %+v %+v", cards[4], cards[5])
	}
}

func TestNVML_PartitionsWithdrawTheirBoard(t *testing.T) {
	t.Parallel()
	s := box()
	board := s.Devices[1].(*server.Device)
	board.MigMode = nvml.DEVICE_MIG_ENABLE
	board.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	board.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i != 0 && i != 2 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc:              func() (string, nvml.Return) { return "MIG-" + string(rune('a'+i)), nvml.SUCCESS },
			GetNameFunc:              func() (string, nvml.Return) { return "NVIDIA A100-SXM4-40GB MIG 1g.5gb", nvml.SUCCESS },
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return i + 7, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
			GetMemoryInfoFunc:        func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 4864 << 20, Used: 1}, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	d := byNVML(t, s)
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 10 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	if c := cards[1]; c.Form != accel.Divided || c.UUID != board.UUID || c.Sources["modes/mig"] != "nvml" {
		t.Errorf("board %+v", c)
	}
	for _, c := range cards[2:4] {
		if c.Form != accel.Partition || c.Parent != board.UUID || len(c.Modes) > 0 || *c.MemoryMiB != 4864 || c.PCIAddress != board.PciBusID || c.Index != 1 {
			t.Errorf("partition %+v", c)
		}
	}
	samples, err := d.Sample(context.Background(), cards)
	if err != nil || *samples["MIG-c"].MemoryUsedMiB != 1 {
		t.Errorf("samples %v, %v", samples, err)
	}
}

func TestNVML_AbsentLibraryIsTheNextPath(t *testing.T) {
	t.Parallel()
	d := New(Config{Root: t.TempDir(), SMI: standIn(t, "rtx4080")}, hclog.NewNullLogger())
	d.nvml = func() (report, error) { return report{}, errNVMLAbsent }
	wantCards(t, d, "0 nvidia/gpu/GeForce-RTX-4080-SUPER GPU-00000000-0000-0000-0000-000000000000 16376 ok")
}
