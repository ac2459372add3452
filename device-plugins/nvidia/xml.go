package nvidia

import (
	"encoding/xml"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

type smiLog struct {
	Driver   string    `xml:"driver_version"`
	CUDA     string    `xml:"cuda_version"`
	Attached string    `xml:"attached_gpus"`
	Boards   smiBoards `xml:"gpu"`
}

type smiGPU struct {
	PCI      string      `xml:"id,attr"`
	Name     string      `xml:"product_name"`
	UUID     string      `xml:"uuid"`
	Minor    string      `xml:"minor_number"`
	MIG      string      `xml:"mig_mode>current_mig"`
	MIGs     few[smiMIG] `xml:"mig_devices>mig_device"`
	Total    string      `xml:"fb_memory_usage>total"`
	Used     string      `xml:"fb_memory_usage>used"`
	Util     string      `xml:"utilization>gpu_util"`
	Heat     string      `xml:"temperature>gpu_temp"`
	Power    few[string] `xml:"gpu_power_readings>power_draw"`
	Average  string      `xml:"gpu_power_readings>average_power_draw"`
	Instant  string      `xml:"gpu_power_readings>instant_power_draw"`
	PowerOld string      `xml:"power_readings>power_draw"`
	Limit    string      `xml:"gpu_power_readings>current_power_limit"`
	LimitOld string      `xml:"power_readings>power_limit"`
	Action   string      `xml:"gpu_recovery_action"`
	MemUtil  string      `xml:"utilization>memory_util"`
	MemHeat  string      `xml:"temperature>memory_temp"`
	Fan      string      `xml:"fan_speed"`
	Clock    string      `xml:"clocks>sm_clock"`
	MemClock string      `xml:"clocks>mem_clock"`
	Replays  string      `xml:"pci>replay_counter"`
	Single   string      `xml:"retired_pages>multiple_single_bit_retirement>retired_count"`
	Double   string      `xml:"retired_pages>double_bit_retirement>retired_count"`
	Pending  string      `xml:"retired_pages>pending_retirement"`
	HotHW    string      `xml:"clocks_event_reasons>clocks_event_reason_hw_thermal_slowdown"`
	HotSW    string      `xml:"clocks_event_reasons>clocks_event_reason_sw_thermal_slowdown"`
	HotHWOld string      `xml:"clocks_throttle_reasons>clocks_throttle_reason_hw_thermal_slowdown"`
	HotSWOld string      `xml:"clocks_throttle_reasons>clocks_throttle_reason_sw_thermal_slowdown"`
	Brake    string      `xml:"clocks_event_reasons>clocks_event_reason_hw_power_brake_slowdown"`
	BrakeOld string      `xml:"clocks_throttle_reasons>clocks_throttle_reason_hw_power_brake_slowdown"`
	Volatile struct {
		SRAMCorrected   string `xml:"sram_correctable"`
		SRAMUncorrected string `xml:"sram_uncorrectable"`
		SRAMParity      string `xml:"sram_uncorrectable_parity"`
		SRAMDouble      string `xml:"sram_uncorrectable_secded"`
		DRAMCorrected   string `xml:"dram_correctable"`
		DRAMUncorrected string `xml:"dram_uncorrectable"`
		SingleOld       string `xml:"single_bit>total"`
		DoubleOld       string `xml:"double_bit>total"`
	} `xml:"ecc_errors>volatile"`
	Procs *struct {
		List few[smiProcess] `xml:"process_info"`
	} `xml:"processes"`
}

type smiProcess struct {
	PID    string `xml:"pid"`
	Type   string `xml:"type"`
	GI     string `xml:"gpu_instance_id"`
	CI     string `xml:"compute_instance_id"`
	Memory string `xml:"used_memory"`
}

type smiMIG struct {
	Index string `xml:"index"`
	GI    string `xml:"gpu_instance_id"`
	CI    string `xml:"compute_instance_id"`
	Total string `xml:"fb_memory_usage>total"`
	Used  string `xml:"fb_memory_usage>used"`
	SMs   string `xml:"device_attributes>shared>multiprocessor_count"`
}

// few is what an element of a list says, up to a number that no real list has.
type few[T any] []T

// UnmarshalXML reads one element of the list. What was read of it before an error is kept.
func (f *few[T]) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	if len(*f) == maxProcesses {
		return d.Skip()
	}
	var one T
	err := d.DecodeElement(&one, &start)
	*f = append(*f, one)
	return err
}

// smiBoards is the report that the elements of boards make, each of which is dropped once it is read.
type smiBoards report

// UnmarshalXML reads one board. What was read of it before an error is kept.
func (b *smiBoards) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	r := (*report)(b)
	if len(r.gpus) == maxBoards {
		return d.Skip()
	}
	var x smiGPU
	err := d.DecodeElement(&x, &start)
	g := x.gpu()
	if g.uuid == "" && g.pci == "" {
		return err
	}
	r.add(g)
	if x.Procs == nil {
		return err
	}
	r.processesKnown = true
	for _, p := range x.Procs.List {
		if pid := whole(p.PID); pid != nil && p.Type != "G" {
			r.use(process{uuid: g.uuid, pci: g.pci, pid: *pid, gi: whole(p.GI), ci: whole(p.CI), memory: mib(p.Memory)})
		}
	}
	return err
}

// maxTags bounds what is read of one text. A real card has some 1400.
const maxTags = 1 << 15

// parseXML reads `nvidia-smi -q -x`. The tool's order of GPU elements is not an index, so cards are known by address
// and UUID. What follows a place that is not XML is lost, what stands before it is kept.
func parseXML(out string) (report, bool) {
	if i := strings.Index(out, "<nvidia_smi_log"); i > 0 {
		out = out[i:]
	}
	dec := xml.NewDecoder(strings.NewReader(firstTags(out)))
	dec.Strict = false
	var log smiLog
	if err := dec.Decode(&log); err != nil && len(log.Boards.gpus) == 0 {
		return report{}, false
	}
	r := report(log.Boards)
	r.driver, r.cuda, r.attached = text(log.Driver), text(log.CUDA), whole(log.Attached)
	return r, len(r.gpus) > 0
}

// firstTags is a text up to the tag that is one too many.
func firstTags(text string) string {
	end := 0
	for range maxTags {
		at := strings.IndexByte(text[end:], '<')
		if at < 0 {
			return text
		}
		end += at + 1
	}
	return text[:end-1]
}

func (x smiGPU) gpu() gpu {
	g := gpu{
		pci: pciAddress(x.PCI), uuid: text(x.UUID), name: text(x.Name), minor: whole(x.Minor), migMode: onOff(x.MIG),
		memory: mib(x.Total), memoryUsed: mib(x.Used), utilization: toolout.Percent(x.Util), temperature: toolout.Celsius(x.Heat),
		powerOf: toolout.Watts(x.Limit),
	}
	known(&g.powerOf, toolout.Watts(x.LimitOld))
	for _, p := range append(x.Power[:len(x.Power):len(x.Power)], x.Instant, x.Average, x.PowerOld) {
		known(&g.power, toolout.Watts(p))
	}
	if strings.TrimSpace(x.Name) != "" && g.name == "" {
		g.dead = reasonERR
	}
	if action := text(x.Action); action != "" && action != "None" {
		g.dead = "nvidia-smi asks for recovery: " + action
	}
	g.more = x.more()
	for _, m := range x.MIGs {
		if device := whole(m.Index); device != nil {
			g.migs = append(g.migs, mig{device: *device, gi: whole(m.GI), ci: whole(m.CI), memory: mib(m.Total), memoryUsed: mib(m.Used), sms: whole(m.SMs)})
		}
	}
	return g
}

// more is the numbers that not every board has.
func (x smiGPU) more() device.Sample {
	ecc, n, yes := x.Volatile, toolout.Count, toolout.YesNo
	return device.Sample{
		MemoryUtilizationPct: toolout.Percent(x.MemUtil), MemoryTemperatureC: toolout.Celsius(x.MemHeat), FanPct: toolout.Percent(x.Fan),
		ClockMHz: toolout.Megahertz(x.Clock), MemoryClockMHz: toolout.Megahertz(x.MemClock), PCIeReplays: n(x.Replays),
		ECCCorrected:    sum(n(ecc.SRAMCorrected), n(ecc.DRAMCorrected), n(ecc.SingleOld)),
		ECCUncorrected:  sum(n(ecc.SRAMUncorrected), n(ecc.SRAMParity), n(ecc.SRAMDouble), n(ecc.DRAMUncorrected), n(ecc.DoubleOld)),
		RetiredPages:    sum(n(x.Single), n(x.Double)),
		RepairPending:   yes(x.Pending),
		ThermalSlowdown: either(either(yes(x.HotHW), yes(x.HotSW)), either(yes(x.HotHWOld), yes(x.HotSWOld))),
		PowerBrake:      either(yes(x.Brake), yes(x.BrakeOld)),
	}
}
