package biren

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// nodeStem begins the path of a card's or a part's node.
const nodeStem = "/dev/biren/card_"

var nodeText = regexp.MustCompile(`^card_\d+$`)

// nodes are the nodes of all cards and parts, as the machine knows them.
func (b *SVI) nodes() ([]string, error) { return listNodes(b.host) }

func listNodes(h share.Host) ([]string, error) {
	found, err := filepath.Glob(h.Path(nodeStem + "*"))
	if err != nil {
		return nil, fmt.Errorf("list nodes of cards: %w", err)
	}
	var out []string
	for _, path := range found {
		if name := filepath.Base(path); nodeText.MatchString(name) {
			out = append(out, filepath.ToSlash(filepath.Join("/dev/biren", name)))
		}
	}
	slices.Sort(out)
	return out, nil
}
