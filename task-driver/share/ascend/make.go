package ascend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// create has the tool make what the note says, and undoes it where that goes wrong.
func (b *VNPUs) create(ctx context.Context, tool string, a share.Ask, n note, t accel.Template, event func(string)) (share.Setup, error) {
	if err := b.notes.Put(a.ID, n); err != nil {
		return share.Setup{}, err
	}
	event(fmt.Sprintf("making virtual NPU %s (%s) on %s", n.Template, accel.FormatMiB(t.MemoryMiB), n.place()))
	id, err := b.createNoted(ctx, tool, a.ID, n)
	if err == nil {
		var setup share.Setup
		if setup, err = b.made(a, n, id); err == nil {
			event(fmt.Sprintf("virtual NPU %d is made on %s", id, n.place()))
			return setup, nil
		}
	}
	undo, cancel := maker.Undoing(ctx)
	defer cancel()
	return share.Setup{}, errors.Join(err, b.Release(undo, a.ID))
}

func (b *VNPUs) createNoted(ctx context.Context, tool string, id share.ID, n note) (int, error) {
	others, err := b.slices.All() // after our note is written: of two at one moment one at least sees the other
	if err != nil {
		return 0, err
	}
	for _, s := range others {
		if s.Device == n.Device {
			return 0, fmt.Errorf("%s is shared in slices by HAMi's library: it can be divided in virtual NPUs when their tasks have ended", n.place())
		}
	}
	if err := b.set(ctx, tool, "create-vnpu", n, "-f", n.Template); err != nil {
		return 0, err
	}
	d, err := b.division(ctx, tool, n.NPU, n.Chip)
	if err != nil {
		return 0, err
	}
	notes, err := b.notes.All()
	if err != nil {
		return 0, err
	}
	vnpu, err := b.find(ctx, tool, n, d, notes, id)
	if err == nil && vnpu == 0 {
		err = fmt.Errorf("npu-smi says that it made %s on %s, and does not list it", n.Template, n.place())
	}
	return vnpu, err
}

// set changes something of a chip. The tool may say that it failed and end with status 0.
func (b *VNPUs) set(ctx context.Context, tool, what string, n note, more ...string) error {
	args := append([]string{"set", "-t", what, "-i", strconv.Itoa(n.NPU), "-c", strconv.Itoa(n.Chip)}, more...)
	out, err := maker.Run(ctx, b.host.Tool, tool, args...)
	if err != nil {
		return err
	}
	if r := ParseResult(out); !r.OK {
		return fmt.Errorf("npu-smi %s: %s", strings.Join(args, " "), r.Message)
	}
	return nil
}

// settle strikes off what is gone of the chip's other notes, before something new can get a number that one of them has.
func (b *VNPUs) settle(ctx context.Context, tool string, c Chip, d Division, of share.ID) error {
	notes, err := b.notes.All()
	if err != nil {
		return err
	}
	for id, n := range notes {
		if id == of || n.NPU != c.NPU || n.Chip != c.Number {
			continue
		}
		vnpu, err := b.find(ctx, tool, n, d, notes, id)
		if err == nil && vnpu == 0 {
			err = b.notes.Drop(id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// find is the number of the virtual NPU that a note is about, 0 when there is none.
func (b *VNPUs) find(ctx context.Context, tool string, n note, d Division, notes map[share.ID]note, of share.ID) (int, error) {
	if n.Boot != b.boot() && !b.survives(ctx, tool) {
		return 0, nil // whatever has its number now was made by somebody else
	}
	if n.VNPU != 0 {
		if slices.Contains(d.VNPUs, VNPU{ID: n.VNPU, Template: n.Template}) {
			return n.VNPU, nil
		}
		return 0, nil
	}
	var fresh []int
	for _, v := range d.VNPUs {
		claimed := slices.Contains(n.Before, v.ID)
		for id, other := range notes {
			claimed = claimed || id != of && other.VNPU == v.ID && other.Template == v.Template
		}
		if !claimed && v.Template == n.Template {
			fresh = append(fresh, v.ID)
		}
	}
	switch len(fresh) {
	case 0:
		return 0, nil
	case 1:
		return fresh[0], nil
	}
	return 0, fmt.Errorf("virtual NPUs %v of %s were made at one moment and only one is ours: destroy the one that nobody uses (npu-smi set -t destroy-vnpu -i %d -c %d -v …)", fresh, n.place(), n.NPU, n.Chip)
}

// survives reports whether virtual NPUs are made again after the machine has started anew (vnpu-cfg-recover). What cannot be
// told counts as yes: then what is listed under our number is held for ours.
func (b *VNPUs) survives(ctx context.Context, tool string) bool {
	out, err := maker.Run(ctx, b.host.Tool, tool, "info", "-t", "vnpu-cfg-recover")
	return err != nil || !strings.Contains(strings.ToLower(out), "disable")
}

func (b *VNPUs) boot() string {
	id, err := os.ReadFile(b.host.Path("/proc/sys/kernel/random/boot_id"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
