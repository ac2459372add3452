package amd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// topology is what the kernel tells of a card's compute units.
type topology struct {
	Units   int // compute units
	XCC     int // dies among which consecutive bits of a mask go round; 1 where the kernel does not tell
	Engines int // shader engines of all dies
	Gen     int // first number of the instruction set: 9 for GCN and CDNA, 10 and above for RDNA
}

// parseTopology reads the properties of one node of the kernel's topology and its PCI address, such as 0000:0a:00.0. ok is
// false for a node without compute units, such as a processor.
func parseTopology(text string) (t topology, address string, ok bool) {
	values := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); found && err == nil {
			values[key] = n
		}
	}
	const most = 1 << 16 // more than any card has
	if values["simd_per_cu"] == 0 || values["simd_count"] == 0 || values["simd_count"] > most || values["array_count"] > most || values["num_xcc"] > most {
		return topology{}, "", false
	}
	t = topology{
		Units: int(values["simd_count"] / values["simd_per_cu"]), XCC: max(int(values["num_xcc"]), 1),
		Engines: int(values["array_count"] / max(values["simd_arrays_per_engine"], 1)), Gen: int(values["gfx_target_version"] / 10000 % most),
	}
	place := values["location_id"]
	address = fmt.Sprintf("%04x:%02x:%02x.%x", values["domain"]&0xffff, place>>8&0xff, place>>3&0x1f, place&7)
	return t, address, t.Units > 0
}

// atom is how many consecutive bits of a mask make the least part that can be given.
//
// A mask that breaks this rule is not refused: it is dropped, and the task has the whole card. On dies in parallel each must
// have a unit, else it runs without a mask; on RDNA two units are one workgroup processor and may not be parted, and the
// processors go round the engines (measured by GPUStack on gfx942 and gfx1101; ROCm's "Setting the number of CUs" tells of the
// pairs). For GCN and CDNA of one die, which nobody has measured, whole rounds of the engines are taken.
func (t topology) atom() int {
	switch {
	case t.Gen >= 10:
		return 2 * max(t.Engines, 1)
	case t.XCC > 1:
		return t.XCC
	}
	return max(t.Engines, 1)
}

// atoms is how many parts the card has.
func (t topology) atoms() int { return t.Units / t.atom() }

// part turns a percentage into atoms, rounded down, since a limit is not to be passed. The error names the least percentage.
func (t topology) part(pct int) (int, error) {
	n := t.Units * pct / 100 / t.atom()
	if n < 1 {
		least := (t.atom()*100 + t.Units - 1) / t.Units
		return 0, fmt.Errorf("%d %% of %d compute units is less than the least part of this card: write compute = %d or more", pct, t.Units, least)
	}
	return n, nil
}

// ranges writes atoms as compute units, such as 0-7,16-23; the atoms are in ascending order.
func (t topology) ranges(atoms []int) string {
	var out []string
	for i := 0; i < len(atoms); {
		j := i
		for j+1 < len(atoms) && atoms[j+1] == atoms[j]+1 {
			j++
		}
		out = append(out, fmt.Sprintf("%d-%d", atoms[i]*t.atom(), (atoms[j]+1)*t.atom()-1))
		i = j + 1
	}
	return strings.Join(out, ",")
}

// topologyOf finds the card in the kernel's topology by its PCI address.
func topologyOf(h share.Host, pci string) (topology, error) {
	paths, err := filepath.Glob(h.Path("/sys/class/kfd/kfd/topology/nodes/*/properties"))
	if err != nil {
		return topology{}, err
	}
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			continue // a node may go while it is read
		}
		if t, address, ok := parseTopology(string(body)); ok && strings.EqualFold(address, pci) {
			return t, nil
		}
	}
	return topology{}, fmt.Errorf("the kernel's topology (/sys/class/kfd/kfd/topology) has no card at %q, so that its compute cannot be limited: leave compute out, or load amdgpu with sudo modprobe amdgpu", pci)
}
