package bronze

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// AMD reads what the kernel's driver counts for each process: /sys/class/kfd/kfd/proc/PID/vram_ID in bytes, where ID is the number
// that the topology gives a card (Linux 5.7).
type AMD struct{ Host share.Host }

var _ Reader = AMD{}

// Uses reads sysfs.
func (a AMD) Uses(_ context.Context, cards []grant.Card) ([]Use, error) {
	ids, err := a.ids(cards)
	if err != nil {
		return nil, fmt.Errorf("read cards of kfd: %w", err)
	}
	processes, err := os.ReadDir(a.Host.Path("sys/class/kfd/kfd/proc"))
	if err != nil {
		return nil, fmt.Errorf("read processes of kfd: %w", err)
	}
	var uses []Use
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid <= 0 {
			continue
		}
		for id, card := range ids {
			body, err := os.ReadFile(a.Host.Path("sys/class/kfd/kfd/proc", p.Name(), "vram_"+id))
			if errors.Is(err, fs.ErrNotExist) {
				continue // not on this card, or it has just ended
			}
			use := Use{Card: card, PID: pid}
			if n, numErr := strconv.ParseUint(strings.TrimSpace(string(body)), 10, 60); err == nil && numErr == nil {
				mib := (n + 1<<20 - 1) >> 20
				use.MemoryMiB = &mib
			}
			uses = append(uses, use)
		}
	}
	return uses, nil
}

// ids are the UUIDs of the cards by the kernel's numbers, told by their places.
func (a AMD) ids(cards []grant.Card) (map[string]string, error) {
	nodes, err := filepath.Glob(a.Host.Path("sys/class/kfd/kfd/topology/nodes/*"))
	if err != nil || len(nodes) == 0 {
		return nil, errors.Join(err, errors.New("the kernel shows no topology: is amdgpu loaded?"))
	}
	ids := map[string]string{}
	for _, node := range nodes {
		id, idErr := os.ReadFile(filepath.Join(node, "gpu_id"))
		properties, err := os.ReadFile(filepath.Join(node, "properties"))
		if errors.Join(idErr, err) != nil {
			continue // a node that this process may not see
		}
		at := location(string(properties))
		for _, c := range cards {
			if name := strings.TrimSpace(string(id)); name != "0" && at != "" && c.PCI != "" && place(c.PCI) == at {
				ids[name] = c.UUID
			}
		}
	}
	return ids, nil
}

// location is the PCI address that lines "location_id 512" and "domain 0" name; empty when they do not.
func location(properties string) string {
	values := map[string]uint64{}
	for line := range strings.Lines(properties) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			values[name] = n
		}
	}
	id, told := values["location_id"]
	if !told || id > 0xffff {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.%d", values["domain"]&0xffff, id>>8, id>>3&0x1f, id&7)
}
