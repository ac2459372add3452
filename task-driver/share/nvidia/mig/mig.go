// Package mig makes shares of NVIDIA cards by hardware: a GPU instance with its compute instance for each share, made when the
// task begins and destroyed when it has ended. It never switches MIG mode and never resets a card.
//
// What is ours: NVIDIA's tool keeps no names, so a note says for each share on which card, by which profile and at which place
// its instance is to be, before the tool is called, and which id and UUID it got afterwards. An instance is ours when a note of
// this boot names its card, profile and place, and its id and its device's UUID as soon as those were noted: an id is given again,
// so that what an administrator makes in the place of ours has it too. Everything else is the
// administrator's, whenever it was made, and is never touched: it counts as taken. A note without an id was followed by a crash;
// the place was free when it was written, so that what stands there by the noted profile, and by no other note's id, counts as
// made by the call that the crash cut short, and is taken back. What that leaves open: an administrator who makes the same
// profile at the same place between such a crash and the next reconcile, and has no process on it yet, loses it; so does one who leaves such an instance without a compute instance, which has no UUID. Instances end with the boot, so that notes of another boot name nothing. The tool refuses to destroy
// what a process uses, and it is never forced: such an instance stays, told with those processes, until they have ended.
//
// The notes are kept twice: in the driver's state folder, and below /run, which ends with the boot as instances do. One of them
// is enough, so that a state folder that is wiped leaves no instance behind.
package mig

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Name is the backend's name.
const Name = string(accel.ModeMIG)

const smi = "nvidia-smi"

// Backend divides cards in MIG mode.
type Backend struct {
	host  share.Host
	notes notes

	mu     sync.Mutex
	warned map[string]bool // what the log was told once
}

var (
	_ share.Backend    = (*Backend)(nil)
	_ share.SelfTester = (*Backend)(nil)
)

// New makes the backend. It touches nothing.
func New(h share.Host) *Backend {
	return &Backend{host: h, notes: newNotes(h), warned: map[string]bool{}}
}

// Name is the backend's name.
func (b *Backend) Name() string { return Name }

// Vendor is NVIDIA.
func (b *Backend) Vendor() accel.Vendor { return accel.NVIDIA }

// Describe says that the card itself keeps the shares apart.
func (b *Backend) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Gold, Memory: share.ByHardware, Compute: share.ByHardware, Faults: share.ByHardware, Sight: share.ByDriver,
		Forms:    []accel.Form{accel.MIG},
		Limits:   "Sizes are the card's MIG profiles, rounded up. Power, clocks and the PCIe link are the whole card's. A CUDA process sees one MIG device only. MIG mode is never switched and a card never reset: the administrator does both. NVLink does not work between MIG devices. Not tested on hardware by this project.",
		LimitsZH: "大小按该卡的 MIG 规格向上取整。功耗、频率与 PCIe 链路为整卡共用。一个 CUDA 进程只能看到一个 MIG 设备。本驱动从不切换 MIG 模式，也从不重置显卡，均由管理员完成。MIG 设备之间不能使用 NVLink。本项目未在硬件上测试。",
	}
}

// Probe passes when a card of the node is in MIG mode.
func (b *Backend) Probe(ctx context.Context) error {
	if _, err := b.host.Tool.Look(smi); err != nil {
		return fmt.Errorf("nvidia-smi is not there: install NVIDIA's driver (%w)", err)
	}
	out, err := b.modes(ctx)
	if err != nil {
		return err
	}
	var off []string
	for line := range strings.Lines(out.Stdout) {
		fields := strings.Split(strings.TrimSpace(line), ", ")
		if len(fields) != 3 || !strings.HasPrefix(fields[0], "GPU-") {
			continue // a card that has failed
		}
		switch {
		case fields[1] == enabled && fields[2] == enabled:
			return nil
		case fields[1] == enabled || fields[1] == disabled:
			off = append(off, modeSentence(fields[0], fields[1], fields[2]))
		}
	}
	switch {
	case len(off) > 0:
		return errors.New(strings.Join(off, "; "))
	case strings.Contains(out.Stdout+out.Stderr, "not a valid field"):
		return errors.New("this driver does not know MIG: install 450 or later")
	case out.ExitCode != 0 && !strings.Contains(out.Stdout, "GPU-"):
		return said(out, "read the cards' MIG mode")
	}
	return errors.New("no card of this node has MIG: use A30, A100, H100 or a later data centre card")
}

func (b *Backend) modes(ctx context.Context) (share.Output, error) {
	return b.host.Tool.Run(ctx, smi, "--query-gpu=uuid,mig.mode.current,mig.mode.pending", "--format=csv,noheader")
}

// SelfTest reads profiles, places and instances of every card in MIG mode: a driver whose answers this version does not
// understand shows when the node joins, not when a task starts. It makes nothing.
func (b *Backend) SelfTest(ctx context.Context) error {
	out, err := b.modes(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for line := range strings.Lines(out.Stdout) {
		uuid, mode, _ := strings.Cut(strings.TrimSpace(line), ", ")
		if mode != enabled+", "+enabled {
			continue
		}
		_, err := b.profiles(ctx, uuid)
		_, listed := b.instances(ctx, uuid)
		problems = append(problems, err, listed)
	}
	return errors.Join(problems...)
}

// Words of the tool.
const (
	enabled  = "Enabled"
	disabled = "Disabled"
)

// modeSentence says what to do about a card whose MIG mode is not on.
func modeSentence(uuid, current, pending string) string {
	if current != pending {
		return fmt.Sprintf("MIG mode of card %s is %s and becomes %s at the card's next reset, which this driver never does: end all that uses the card, then sudo nvidia-smi --gpu-reset -i %s, or restart the machine",
			uuid, current, pending, uuid)
	}
	return fmt.Sprintf("MIG mode of card %s is off: sudo nvidia-smi -i %s -mig 1 while nothing uses the card", uuid, uuid)
}

// warn tells the log something once.
func (b *Backend) warn(text string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := fmt.Sprint(append([]any{text}, args...)...)
	if !b.warned[key] {
		b.warned[key] = true
		b.host.Logger().Warn(text, args...)
	}
}
