package nvidiatest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// smi is nvidia-smi. Statuses are those of its manual page: 2 bad arguments, 6 nothing found.
func (m *Machine) smi(args []string) share.Output {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, picked := flag(args, "-i")
	cards := m.cards
	if picked {
		cards = slices.DeleteFunc(slices.Clone(m.cards), func(c *Card) bool { return c.UUID != id })
		if len(cards) == 0 {
			return failed(6, "No devices were found\n")
		}
	}
	switch {
	case len(args) == 0:
		return failed(2, "the fake has no table\n")
	case args[0] == "mig" && picked:
		return mig(cards[0], args[1:])
	case args[0] == "-L":
		return said(list(cards))
	case args[0] == "-q" && slices.Contains(args, "-x"):
		return said(xml(cards))
	case strings.HasPrefix(args[0], "--query-gpu="):
		return query(cards, strings.TrimPrefix(args[0], "--query-gpu="), headed(args))
	case strings.HasPrefix(args[0], "--query-compute-apps="):
		return said(apps(cards, headed(args)))
	}
	return failed(2, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
}

// headed tells whether a table in CSV begins with the names of its columns.
func headed(args []string) bool { return slices.Contains(args, "--format=csv") }

// query answers for the fields that tests of shares and of detection need, of cards that idle.
func query(cards []*Card, fields string, header bool) share.Output {
	units := map[string]string{
		"memory.total": " [MiB]", "memory.used": " [MiB]", "utilization.gpu": " [%]", "power.draw": " [W]", "power.limit": " [W]",
	}
	var out strings.Builder
	if header {
		var names []string
		for field := range strings.SplitSeq(fields, ",") {
			names = append(names, field+units[field])
		}
		out.WriteString(strings.Join(names, ", ") + "\n")
	}
	for _, c := range cards {
		var row []string
		for field := range strings.SplitSeq(fields, ",") {
			value, known := map[string]string{
				"index": fmt.Sprint(c.Index), "uuid": c.UUID, "name": c.Model, "pci.bus_id": fmt.Sprintf("00000000:%02X:00.0", c.Index+1),
				"mig.mode.current": c.MIG, "mig.mode.pending": c.pending(), "driver_version": "550.54.15",
				"memory.total": fmt.Sprintf("%d MiB", c.MemoryMiB), "memory.used": "0 MiB",
				"utilization.gpu": "0 %", "temperature.gpu": "31", "power.draw": "41.00 W", "power.limit": "350.00 W",
			}[field]
			if !known {
				return failed(2, fmt.Sprintf("Field \"%s\" is not a valid field to query.\n", field))
			}
			row = append(row, value)
		}
		out.WriteString(strings.Join(row, ", ") + "\n")
	}
	return said(out.String())
}

func (c *Card) pending() string {
	if c.Pending == "" {
		return c.MIG
	}
	return c.Pending
}

func apps(cards []*Card, header bool) string {
	var out strings.Builder
	if header {
		out.WriteString("gpu_uuid, pid, used_gpu_memory [MiB]\n")
	}
	for _, c := range cards {
		for _, p := range c.Clients {
			if !p.Graphics {
				fmt.Fprintf(&out, "%s, %d, %d\n", c.UUID, p.PID, p.UsedMiB)
			}
		}
	}
	return out.String()
}

// devices are the instances that are MIG devices, in the order of their numbers.
func (c *Card) devices() []Instance {
	list := slices.DeleteFunc(slices.Clone(c.Instances), func(in Instance) bool { return !in.Compute })
	slices.SortFunc(list, func(a, b Instance) int { return a.ID - b.ID })
	return list
}

// DeviceUUID is the UUID of the MIG device of a GPU instance.
func (c *Card) DeviceUUID(gi int) string {
	times := 0
	if at := c.instance(gi); at >= 0 {
		times = c.Instances[at].Times
	}
	return fmt.Sprintf("MIG-%08x-%04x-5d48-%04x-82bc59af3901", len(c.UUID)*7919+c.Index, gi, 0x9f07+times)
}

func list(cards []*Card) string {
	var out strings.Builder
	for _, c := range cards {
		fmt.Fprintf(&out, "GPU %d: %s (UUID: %s)\n", c.Index, c.Model, c.UUID)
		for n, in := range c.devices() {
			fmt.Fprintf(&out, "  MIG %-12sDevice %2d: (UUID: %s)\n", c.profile(in.Profile).Name, n, c.DeviceUUID(in.ID))
		}
	}
	return out.String()
}

func xml(cards []*Card) string {
	var out strings.Builder
	out.WriteString("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n")
	fmt.Fprintf(&out, "\t<attached_gpus>%d</attached_gpus>\n", len(cards))
	for _, c := range cards {
		fmt.Fprintf(&out, "\t<gpu id=\"0000000%d:01:00.0\">\n\t\t<product_name>%s</product_name>\n", c.Index, c.Model)
		fmt.Fprintf(&out, "\t\t<mig_mode>\n\t\t\t<current_mig>%s</current_mig>\n\t\t\t<pending_mig>%s</pending_mig>\n\t\t</mig_mode>\n",
			strings.Trim(c.MIG, "[]"), strings.Trim(c.pending(), "[]"))
		out.WriteString("\t\t<mig_devices>\n")
		for n, in := range c.devices() {
			fmt.Fprintf(&out, "\t\t\t<mig_device>\n\t\t\t\t<index>%d</index>\n\t\t\t\t<gpu_instance_id>%d</gpu_instance_id>\n\t\t\t\t<compute_instance_id>0</compute_instance_id>\n\t\t\t</mig_device>\n", n, in.ID)
		}
		fmt.Fprintf(&out, "\t\t</mig_devices>\n\t\t<uuid>%s</uuid>\n\t\t<minor_number>%d</minor_number>\n\t\t<processes>\n", c.UUID, c.Index)
		for _, p := range c.Clients {
			gi, kind := "N/A", "C"
			if p.GI != nil {
				gi = fmt.Sprint(*p.GI)
			}
			if p.Graphics {
				kind = "G"
			}
			fmt.Fprintf(&out, "\t\t\t<process_info>\n\t\t\t\t<gpu_instance_id>%s</gpu_instance_id>\n\t\t\t\t<pid>%d</pid>\n\t\t\t\t<type>%s</type>\n\t\t\t\t<process_name>%s</process_name>\n\t\t\t\t<used_memory>%d MiB</used_memory>\n\t\t\t</process_info>\n",
				gi, p.PID, kind, p.Name, p.UsedMiB)
		}
		out.WriteString("\t\t</processes>\n\t</gpu>\n")
	}
	out.WriteString("</nvidia_smi_log>\n")
	return out.String()
}
