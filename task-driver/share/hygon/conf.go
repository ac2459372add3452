package hygon

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// mask is a set of compute units: bit i of the first word is unit i, of the second unit 64+i.
type mask [2]uint64

// maxUnits is how many compute units a mask has room for.
const maxUnits = 128

func (m mask) count() int { return bits.OnesCount64(m[0]) + bits.OnesCount64(m[1]) }

func (m mask) has(unit int) bool { return m[unit/64]&(1<<(unit%64)) != 0 }

func (m *mask) add(unit int) { m[unit/64] |= 1 << (unit % 64) }

func (m mask) or(o mask) mask { return mask{m[0] | o[0], m[1] | o[1]} }

// pick takes n of the card's units that are not taken, lowest first; ok is false when there are fewer.
func pick(units, n int, taken mask) (m mask, ok bool) {
	for unit := range units {
		if m.count() < n && !taken.has(unit) {
			m.add(unit)
		}
	}
	return m, m.count() == n
}

// conf is the file by which the maker's runtime library in a container knows its virtual card.
//
// Its form is that of Project-HAMi/dcu-vgpu-device-plugin. What the library insists on was measured by GPUStack on a BW card:
// cu_count is the number of bits in the mask, vdev_id is the number in the file's name (containers do not disturb each other
// by having the same), and pipe_id is unique among the virtual cards of one card; whoever breaks one has no card at all.
type conf struct {
	PCI  string // address of the card
	Mask mask
	MiB  uint64
	Pipe int
}

// fileName is the file's name; its number is the vdev_id.
const fileName = "vdev0.conf"

// text is the file's content.
func (c conf) text() []byte {
	return fmt.Appendf(nil, "PciBusId: %s\ncu_mask: 0x%016x\ncu_mask: 0x%016x\ncu_count: %d\nmem: %d MiB\ndevice_id: 0\nvdev_id: 0\npipe_id: %d\nenable: 1\n",
		c.PCI, c.Mask[0], c.Mask[1], c.Mask.count(), c.MiB, c.Pipe)
}

// parseConf reads what text writes, and what other programs write of their virtual cards.
func parseConf(text string) (conf, error) {
	var c conf
	masks, seen := 0, map[string]bool{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		var err error
		switch key {
		case "PciBusId":
			c.PCI = strings.ToLower(value)
		case "cu_mask":
			if masks == len(c.Mask) {
				return conf{}, fmt.Errorf("it has more than %d masks", masks)
			}
			c.Mask[masks], err = strconv.ParseUint(strings.TrimPrefix(strings.ToLower(value), "0x"), 16, 64)
			masks++
		case "mem":
			c.MiB, err = strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(value, "MiB")), 10, 32)
		case "pipe_id":
			var pipe uint64
			pipe, err = strconv.ParseUint(value, 10, 16)
			c.Pipe = int(pipe)
		default:
			continue
		}
		if err != nil {
			return conf{}, fmt.Errorf("%s is %q, which is no number of its kind", key, value)
		}
		seen[key] = true
	}
	for _, key := range []string{"PciBusId", "cu_mask", "mem", "pipe_id"} {
		if !seen[key] {
			return conf{}, fmt.Errorf("it has no %s", key)
		}
	}
	return c, nil
}

// units are the compute units of each card by `hy-smi virtual -show-device-info`, by the card's index.
func units(out string) map[int]int {
	found := map[int]int{}
	actual := -1
	for line := range strings.Lines(out) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(value))
		switch {
		case strings.HasPrefix(key, "Device ") || strings.HasPrefix(key, "Virtual Device "):
			actual = -1
		case key == "Actual Device" && err == nil && n >= 0:
			actual = n
		case key == "Compute units" && err == nil && n > 0 && n <= maxUnits && actual >= 0:
			found[actual] = n
		}
	}
	return found
}
