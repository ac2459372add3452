package topology

import (
	"regexp"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// NVLinks is what `nvidia-smi nvlink -s` says of one card.
type NVLinks struct {
	Label string // GPU and the index
	UUID  string
	GBps  []*float64 // speed of each link, one way; nil for a link that is not up
}

var (
	nvlinkCard = regexp.MustCompile(`^GPU (\d+): .*\(UUID: ([^)\s]+)\)$`)
	nvlinkLine = regexp.MustCompile(`^Link \d+: (?:([0-9.]+) GB/s|\S.*)$`)
)

// ParseNVLinks reads `nvidia-smi nvlink -s`. A card that does not answer, such as one in MIG mode, has no links in it.
func ParseNVLinks(text string) []NVLinks {
	var cards []NVLinks
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if found := nvlinkCard.FindStringSubmatch(line); found != nil {
			cards = append(cards, NVLinks{Label: "GPU" + found[1], UUID: found[2]})
			continue
		}
		if found := nvlinkLine.FindStringSubmatch(line); found != nil && len(cards) > 0 {
			last := &cards[len(cards)-1]
			last.GBps = append(last.GBps, bandwidth(found[1]))
		}
	}
	return cards
}

// AddSpeeds adds bandwidth to the NVLinks of a graph whose cards bear the tool's labels. All links of a card that are up
// must tell the same speed: which of them lead to which peer is not shown.
func (g *Graph) AddSpeeds(cards []NVLinks) {
	each := map[string]float64{}
	for _, c := range cards {
		if speed, same := c.speed(); same {
			each[c.Label] = speed
		}
	}
	for _, e := range g.Edges() {
		a, b := each[e.A], each[e.B]
		if e.Link.Kind != accel.LinkNVLink || e.Link.Count == nil || a == 0 || a != b {
			continue
		}
		total := a * float64(*e.Link.Count)
		e.GBps = &total
		g.AddEdge(e)
	}
}

func (c NVLinks) speed() (each float64, same bool) {
	for _, s := range c.GBps {
		switch {
		case s == nil:
		case each != 0 && each != *s:
			return 0, false
		default:
			each = *s
		}
	}
	return each, each != 0
}
