package nvidia

import (
	"encoding/xml"
	"strings"
)

type smiLog struct {
	Driver string   `xml:"driver_version"`
	GPUs   []smiGPU `xml:"gpu"`
}

type smiGPU struct {
	PCI      string   `xml:"id,attr"`
	Name     string   `xml:"product_name"`
	UUID     string   `xml:"uuid"`
	Minor    string   `xml:"minor_number"`
	MIG      string   `xml:"mig_mode>current_mig"`
	MIGs     []smiMIG `xml:"mig_devices>mig_device"`
	Total    string   `xml:"fb_memory_usage>total"`
	Used     string   `xml:"fb_memory_usage>used"`
	Util     string   `xml:"utilization>gpu_util"`
	Heat     string   `xml:"temperature>gpu_temp"`
	Power    []string `xml:"gpu_power_readings>power_draw"`
	Average  string   `xml:"gpu_power_readings>average_power_draw"`
	Instant  string   `xml:"gpu_power_readings>instant_power_draw"`
	PowerOld string   `xml:"power_readings>power_draw"`
	Limit    string   `xml:"gpu_power_readings>current_power_limit"`
	LimitOld string   `xml:"power_readings>power_limit"`
	Action   string   `xml:"gpu_recovery_action"`
	Procs    *struct {
		List []struct {
			PID  string `xml:"pid"`
			Type string `xml:"type"`
		} `xml:"process_info"`
	} `xml:"processes"`
}

type smiMIG struct {
	Index string `xml:"index"`
	GI    string `xml:"gpu_instance_id"`
	CI    string `xml:"compute_instance_id"`
	Total string `xml:"fb_memory_usage>total"`
	Used  string `xml:"fb_memory_usage>used"`
}

// parseXML reads `nvidia-smi -q -x`. The tool's order of GPU elements is not an index, so cards are known by address
// and UUID. What follows a place that is not XML is lost, what stands before it is kept.
func parseXML(out string) (report, bool) {
	if i := strings.Index(out, "<nvidia_smi_log"); i > 0 {
		out = out[i:]
	}
	dec := xml.NewDecoder(strings.NewReader(out))
	dec.Strict = false
	var log smiLog
	if err := dec.Decode(&log); err != nil && len(log.GPUs) == 0 {
		return report{}, false
	}
	r := report{driver: text(log.Driver)}
	for _, x := range log.GPUs {
		g := x.gpu()
		if g.uuid == "" && g.pci == "" {
			continue
		}
		r.gpus = append(r.gpus, g)
		if x.Procs == nil {
			continue
		}
		r.processesKnown = true
		for _, p := range x.Procs.List {
			if pid := whole(p.PID); pid != nil && p.Type != "G" {
				r.processes = append(r.processes, process{uuid: g.uuid, pci: g.pci, pid: *pid})
			}
		}
	}
	return r, len(r.gpus) > 0
}

func (x smiGPU) gpu() gpu {
	g := gpu{
		pci: pciAddress(x.PCI), uuid: text(x.UUID), name: text(x.Name), minor: whole(x.Minor), migMode: onOff(x.MIG),
		memory: mib(x.Total), memoryUsed: mib(x.Used), utilization: number(x.Util), temperature: number(x.Heat),
		powerOf: number(x.Limit),
	}
	known(&g.powerOf, number(x.LimitOld))
	for _, p := range append(x.Power, x.Instant, x.Average, x.PowerOld) {
		known(&g.power, number(p))
	}
	if strings.TrimSpace(x.Name) != "" && g.name == "" {
		g.dead = reasonERR
	}
	if action := text(x.Action); action != "" && action != "None" {
		g.dead = "nvidia-smi asks for recovery: " + action
	}
	for _, m := range x.MIGs {
		if device := whole(m.Index); device != nil {
			g.migs = append(g.migs, mig{device: *device, gi: whole(m.GI), ci: whole(m.CI), memory: mib(m.Total), memoryUsed: mib(m.Used)})
		}
	}
	return g
}
