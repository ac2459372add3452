// Package ascend makes shares of Ascend chips: virtual NPUs of the maker's driver, and slices by HAMi's library. What cards
// there are belongs to the device plugin; cutting by the container runtime (ASCEND_VNPU_SPECS) is not used, since what it
// makes is not given back after a crash.
package ascend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// tools are where npu-smi may be.
var tools = []string{"npu-smi", "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi"}

// VNPUs makes virtual NPUs. The tool keeps no names and does not tell the number of what it made: a note is written before,
// with the numbers there were, and what is new and of the template noted is ours.
type VNPUs struct {
	host   share.Host
	notes  share.Notes[note]
	slices share.Notes[slice] // of the other backend: a chip is divided by one of the two
}

var _ share.Backend = (*VNPUs)(nil)

// note is what is remembered of one virtual NPU.
type note struct {
	NPU      int    `json:"npu"`
	Chip     int    `json:"chip"`
	Device   int    `json:"device"` // /dev/davinciN of the chip
	Template string `json:"template"`
	Before   []int  `json:"before,omitempty"` // numbers on the chip before it was made
	VNPU     int    `json:"vnpu,omitempty"`   // 0 until it is known
	Boot     string `json:"boot,omitempty"`   // of the machine
}

func (n note) place() string { return fmt.Sprintf("NPU %d chip %d", n.NPU, n.Chip) }

func vnpuNotes(h share.Host) share.Notes[note] {
	return share.NotesOf[note](h, string(accel.Ascend), accel.ModeVNPU)
}

func sliceNotes(h share.Host) share.Notes[slice] {
	return share.NotesOf[slice](h, string(accel.Ascend), accel.ModeHAMi)
}

// NewVNPUs makes the backend.
func NewVNPUs(h share.Host) *VNPUs {
	return &VNPUs{host: h, notes: vnpuNotes(h), slices: sliceNotes(h)}
}

// Name is vnpu.
func (b *VNPUs) Name() string { return accel.ModeVNPU }

// Vendor is Ascend.
func (b *VNPUs) Vendor() accel.Vendor { return accel.Ascend }

// Describe says what a virtual NPU keeps apart.
func (b *VNPUs) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Gold, Memory: share.ByHardware, Compute: share.ByHardware, Faults: share.ByHardware, Sight: share.ByDriver,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "Only in the templates that the chip has (npu-smi info -t template-info); a part of a template's memory is kept by the driver. Containers only. A chip that a task uses whole is not divided, a divided one is not given whole. A reset of the chip ends all virtual NPUs on it. Not beside slices by hami on one chip, nor with a whole Ascend card in one task where the maker's runtime is used. Not tested on hardware by this project.",
		LimitsZH: "只能按芯片自带模板切分（npu-smi info -t template-info），模板显存的一部分由驱动保留。仅限容器。整卡使用中的芯片不切分，已切分的芯片不整卡分配。芯片复位会使其上所有 vNPU 失效。同一芯片不能同时使用 hami 切片；使用厂商运行时时，同一任务不能再有昇腾整卡。本项目未在真实硬件上验证。",
	}
}

// Probe wants the tool, and the mode in which virtual NPUs are for containers.
func (b *VNPUs) Probe(ctx context.Context) error {
	tool, err := maker.Find(b.host.Tool, tools...)
	if err != nil {
		return fmt.Errorf("npu-smi is not found: install the Ascend driver, which brings /usr/local/bin/npu-smi (%w)", err)
	}
	mode, err := maker.Run(ctx, b.host.Tool, tool, "info", "-t", "vnpu-mode")
	if err != nil {
		return fmt.Errorf("npu-smi does not tell how NPUs are divided: run the Nomad client as root or in the group HwHiAiUser, and upgrade the Ascend driver where it does not know -t vnpu-mode (%w)", err)
	}
	if _, value, ok := strings.Cut(mode, ":"); ok && strings.Contains(strings.ToLower(value), "vm") {
		return errors.New("NPUs of this node are divided for virtual machines: sudo npu-smi set -t vnpu-mode -d 0 divides them for containers")
	}
	return nil
}

func (b *VNPUs) chips(ctx context.Context, tool string) ([]Chip, error) {
	out, err := maker.Run(ctx, b.host.Tool, tool, "info")
	if err != nil {
		return nil, fmt.Errorf("npu-smi does not reach the driver: run the Nomad client as root or in the group HwHiAiUser (%w)", err)
	}
	chips := ParseChips(out)
	if len(chips) == 0 {
		return nil, errors.New("npu-smi lists no NPU: run npu-smi info, and install the driver anew where it says that dcmi is not initialised")
	}
	return chips, nil
}

// locate finds the chip of a card.
func (b *VNPUs) locate(ctx context.Context, tool string, card grant.Card) (Chip, error) {
	chips, err := b.chips(ctx, tool)
	if err != nil {
		return Chip{}, err
	}
	device := maker.NodeNumber(card, "/dev/davinci")
	i := slices.IndexFunc(chips, func(c Chip) bool { return c.Device == device })
	if i < 0 {
		return Chip{}, fmt.Errorf("npu-smi lists no device %d for card %s: it may have fallen off the bus", device, card.UUID)
	}
	if bus := chips[i].Bus; bus != "" && card.PCI != "" && !strings.EqualFold(bus, card.PCI) {
		return Chip{}, fmt.Errorf("device %d is at %s now, card %s was at %s: the numbers have changed, it is tried again when the device plugin has seen it", device, bus, card.UUID, card.PCI)
	}
	return chips[i], nil
}

// division reads how a chip is divided.
func (b *VNPUs) division(ctx context.Context, tool string, npu, chip int) (Division, error) {
	out, err := maker.Run(ctx, b.host.Tool, tool, "info", "-t", "info-vnpu", "-i", strconv.Itoa(npu), "-c", strconv.Itoa(chip))
	if err != nil {
		return Division{}, err
	}
	d := ParseDivision(out)
	if !d.Complete() {
		return Division{}, fmt.Errorf("npu-smi info -t info-vnpu lists %d virtual NPUs of NPU %d chip %d and counts %d: nothing is changed by half a list", len(d.VNPUs), npu, chip, d.Total)
	}
	return d, nil
}

// sizes are the templates that the tool lists; none when it cannot tell. Versions differ in whether they want the chip.
func (b *VNPUs) sizes(ctx context.Context, tool string, c Chip) []Size {
	args := []string{"info", "-t", "template-info", "-i", strconv.Itoa(c.NPU)}
	for _, more := range [][]string{nil, {"-c", strconv.Itoa(c.Number)}} {
		if out, err := maker.Run(ctx, b.host.Tool, tool, slices.Concat(args, more)...); err == nil {
			if sizes := ParseSizes(out); len(sizes) > 0 {
				return sizes
			}
		}
	}
	return nil
}

// Prepare makes the virtual NPU.
func (b *VNPUs) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	if !a.Container {
		return share.Setup{}, errors.New("virtual NPUs are for containers: set image, or ask for qos bronze")
	}
	tool, err := maker.Find(b.host.Tool, tools...)
	if err != nil {
		return share.Setup{}, err
	}
	chip, err := b.locate(ctx, tool, a.Card)
	if err != nil {
		return share.Setup{}, err
	}
	d, err := b.division(ctx, tool, chip.NPU, chip.Number)
	if err != nil {
		return share.Setup{}, err
	}
	m := menuOf(a.Card.Model, d.Cores, b.sizes(ctx, tool, chip))
	if len(m.rule.Templates) == 0 {
		return share.Setup{}, fmt.Errorf("npu-smi lists no template of a %s and none is published: ask for the whole card, or for qos silver or bronze", a.Card.Model)
	}
	template, err := m.choose(a)
	if err != nil {
		return share.Setup{}, err
	}
	notes, err := b.notes.All()
	if err != nil {
		return share.Setup{}, err
	}
	if old, known := notes[a.ID]; known {
		id, err := b.find(ctx, tool, old, d, notes, a.ID)
		if err != nil {
			return share.Setup{}, err
		}
		if id != 0 && old.NPU == chip.NPU && old.Chip == chip.Number && old.Template == template.Name {
			return b.made(a, old, id)
		}
		if err := b.Release(ctx, a.ID); err != nil {
			return share.Setup{}, err
		}
		if d, err = b.division(ctx, tool, chip.NPU, chip.Number); err != nil {
			return share.Setup{}, err
		}
	}
	if err := b.settle(ctx, tool, chip, d, a.ID); err != nil {
		return share.Setup{}, err
	}
	if err := room(chip, d, template); err != nil {
		return share.Setup{}, err
	}
	n := note{NPU: chip.NPU, Chip: chip.Number, Device: chip.Device, Template: template.Name, Before: d.IDs(), Boot: b.boot()}
	return b.create(ctx, tool, a, n, template, event)
}

// room says why a chip has no room for a template; nil when it has, or cannot tell.
func room(c Chip, d Division, t accel.Template) error {
	switch {
	case len(d.VNPUs) == 0 && len(c.PIDs) > 0:
		return fmt.Errorf("NPU %d chip %d is used whole by process %d: it is divided when that has ended", c.NPU, c.Number, c.PIDs[0])
	case d.Cores > 0 && d.FreeCores < t.Parts:
		return fmt.Errorf("NPU %d chip %d has %d of %d AI cores free, %s needs %d: virtual NPUs %v hold the others", c.NPU, c.Number, d.FreeCores, d.Cores, t.Name, t.Parts, d.IDs())
	}
	return nil
}

// made notes the number and says how to use the virtual NPU: the runtime is told its number, and its node takes the place of
// the chip's. In the container the chips are numbered from 0.
func (b *VNPUs) made(a share.Ask, n note, id int) (share.Setup, error) {
	if boot := b.boot(); n.VNPU != id || n.Boot != boot {
		n.VNPU, n.Boot = id, boot
		if err := b.notes.Put(a.ID, n); err != nil {
			return share.Setup{}, err
		}
	}
	number := strconv.Itoa(id)
	return share.Setup{
		Env:     map[string]string{"ASCEND_RUNTIME_OPTIONS": "VIRTUAL", "ASCEND_RT_VISIBLE_DEVICES": upTo(a.Of)},
		Visible: number, Nodes: []string{"/dev/vdavinci" + number + ":/dev/davinci" + number}, Instead: true,
	}, nil
}

// upTo lists the numbers of n devices, such as 0,1,2.
func upTo(n int) string {
	var list []string
	for i := range max(n, 1) {
		list = append(list, strconv.Itoa(i))
	}
	return strings.Join(list, ",")
}

// Release destroys the virtual NPU.
func (b *VNPUs) Release(ctx context.Context, id share.ID) error {
	notes, err := b.notes.All()
	n, known := notes[id]
	if !known {
		return err
	}
	tool, err := maker.Find(b.host.Tool, tools...)
	if err != nil {
		return err
	}
	d, err := b.division(ctx, tool, n.NPU, n.Chip)
	if err != nil {
		return err
	}
	vnpu, err := b.find(ctx, tool, n, d, notes, id)
	if err != nil {
		return err
	}
	if vnpu != 0 {
		n.VNPU = vnpu
		if err := b.notes.Put(id, n); err != nil {
			return err
		}
		if err := b.set(ctx, tool, "destroy-vnpu", n, "-v", strconv.Itoa(vnpu)); err != nil {
			return err
		}
	}
	return b.notes.Drop(id)
}

// Reconcile destroys virtual NPUs that we noted and that are not live.
func (b *VNPUs) Reconcile(ctx context.Context, live map[share.ID]share.Ask) error {
	notes, err := b.notes.All()
	problems := []error{err}
	for id := range notes {
		if _, is := live[id]; !is {
			problems = append(problems, b.Release(ctx, id))
		}
	}
	return errors.Join(problems...)
}
