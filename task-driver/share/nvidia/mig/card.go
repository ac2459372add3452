package mig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// said is the tool's refusal as an error.
func said(out share.Output, what string) error {
	return fmt.Errorf("%s: nvidia-smi ends with %d: %s", what, out.ExitCode, firstLine(out))
}

func firstLine(out share.Output) string {
	for line := range strings.Lines(out.Stderr + "\n" + out.Stdout) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "Successfully") {
			return line
		}
	}
	return "it says nothing"
}

// mig runs the tool's part for GPU instances on one card.
func (b *Backend) mig(ctx context.Context, card string, args ...string) (share.Output, error) {
	return b.host.Tool.Run(ctx, smi, append([]string{"mig", "-i", card}, args...)...)
}

// instances are those on the card.
func (b *Backend) instances(ctx context.Context, card string) ([]instance, error) {
	out, err := b.mig(ctx, card, "-lgi")
	if err != nil {
		return nil, err
	}
	list, err := parseInstances(out.Stdout + out.Stderr)
	if err != nil {
		if out.ExitCode != 0 {
			return nil, said(out, "list the GPU instances of "+card)
		}
		return nil, fmt.Errorf("list the GPU instances of %s: %w", card, err)
	}
	return list, nil
}

// profiles are what the card can be divided into, with the places.
func (b *Backend) profiles(ctx context.Context, card string) ([]profile, error) {
	out, err := b.mig(ctx, card, "-lgip")
	if err != nil {
		return nil, err
	}
	if out.ExitCode != 0 {
		return nil, said(out, "list the MIG profiles of "+card)
	}
	list, err := parseProfiles(out.Stdout)
	if err != nil {
		return nil, fmt.Errorf("list the MIG profiles of %s: %w", card, err)
	}
	if out, err = b.mig(ctx, card, "-lgipp"); err != nil {
		return nil, err
	}
	if out.ExitCode != 0 {
		return nil, said(out, "list the places of MIG profiles on "+card)
	}
	if err := parsePlaces(out.Stdout, list); err != nil {
		return nil, fmt.Errorf("list the places of MIG profiles on %s: %w", card, err)
	}
	return list, nil
}

// state asks for the card's mode, MIG devices and processes.
func (b *Backend) state(ctx context.Context, card string) (state, error) {
	out, err := b.host.Tool.Run(ctx, smi, "-q", "-x", "-i", card)
	if err != nil {
		return state{}, err
	}
	if out.ExitCode != 0 && !strings.Contains(out.Stdout, card) {
		return state{}, said(out, "read card "+card)
	}
	return parseState(out.Stdout, card)
}

// clients lists who uses the card, or one instance of it, for a sentence.
func (b *Backend) clients(ctx context.Context, card string, gi *int) string {
	s, err := b.state(ctx, card)
	if err != nil {
		return "who uses it cannot be read: " + err.Error()
	}
	var who []string
	for _, p := range s.Processes {
		if gi == nil || p.GI == strconv.Itoa(*gi) {
			who = append(who, fmt.Sprintf("pid %s (%s)", p.PID, p.Name))
		}
	}
	if len(who) == 0 {
		return "no process is listed: look for agents that keep cards open, such as dcgm-exporter or nv-hostengine"
	}
	return "used by " + strings.Join(who, ", ")
}

// errNoDevice says that a GPU instance has no MIG device, and so no compute instance.
var errNoDevice = errors.New("the GPU instance has no compute instance")

// looks is how often the list of MIG devices is read until it does not change while it is read.
const looks = 3

// device finds the MIG device of a GPU instance. The list has the UUIDs by number, and only the card's state tells which number
// is on which instance; so the list must be the same before and after.
func (b *Backend) device(ctx context.Context, card string, gi int) (share.Setup, error) {
	for range looks {
		before, err := b.listed(ctx, card)
		if err != nil {
			return share.Setup{}, err
		}
		s, err := b.state(ctx, card)
		if err != nil {
			return share.Setup{}, err
		}
		after, err := b.listed(ctx, card)
		if err != nil {
			return share.Setup{}, err
		}
		if maps.Equal(before, after) && len(s.Devices) == len(after) {
			return b.setup(s, after, card, gi)
		}
	}
	return share.Setup{}, fmt.Errorf("the MIG devices of card %s change all the time: look who makes and destroys them", card)
}

func (b *Backend) listed(ctx context.Context, card string) (map[int]string, error) {
	out, err := b.host.Tool.Run(ctx, smi, "-L")
	if err != nil {
		return nil, err
	}
	devices, ok := parseList(out.Stdout, card)
	if !ok {
		return nil, said(out, "find card "+card+" in the list of cards")
	}
	return devices, nil
}

// setup names the device that is on the instance.
func (b *Backend) setup(s state, uuids map[int]string, card string, gi int) (share.Setup, error) {
	for _, d := range s.Devices {
		if d.GI != gi {
			continue
		}
		uuid := uuids[d.Index]
		if !strings.HasPrefix(uuid, "MIG-") {
			return share.Setup{}, fmt.Errorf("MIG device %d of card %s is listed without its UUID", d.Index, card)
		}
		return share.Setup{Visible: uuid, Nodes: b.nodes(s.Minor, d)}, nil
	}
	return share.Setup{}, errNoDevice
}

var capMinor = regexp.MustCompile(`(?m)^DeviceFileMinor:\s*(\d+)\s*$`)

// nodes are the device nodes that let a process use the instance, beside the card's own. Where the kernel does not tell them, the
// runtime or CDI brings what is needed.
func (b *Backend) nodes(minor string, d part) []string {
	var out []string
	gi := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%s/mig/gi%d", minor, d.GI)
	for _, file := range []string{gi + "/access", fmt.Sprintf("%s/ci%d/access", gi, d.CI)} {
		text, err := os.ReadFile(b.host.Path(file))
		m := capMinor.FindSubmatch(text)
		if err != nil || m == nil {
			return nil
		}
		node := "/dev/nvidia-caps/nvidia-cap" + string(m[1])
		if _, err := os.Stat(b.host.Path(node)); err != nil {
			return nil
		}
		out = append(out, node)
	}
	return out
}
