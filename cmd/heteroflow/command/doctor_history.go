package command

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/health"
)

// lastChanges is how many changes of one card the doctor tells.
const lastChanges = 3

// checkHistory tells what befell the cards of this machine last, as the device plugin wrote it down.
func checkHistory(dir string) []finding {
	records, err := health.Read(dir)
	if err != nil {
		return []finding{warn("card history", "run it as a user who may read "+filepath.Join(dir, health.File)+", or name another folder with -state-dir", "%s", err)}
	}
	byCard := map[string][]health.Record{}
	var cards []string
	for _, r := range records {
		if len(byCard[r.Card]) == 0 {
			cards = append(cards, r.Card)
		}
		byCard[r.Card] = append(byCard[r.Card], r)
	}
	slices.SortStableFunc(cards, func(a, b string) int { // the latest trouble first
		return latest(byCard[b]).Compare(latest(byCard[a]))
	})
	const most = 16 // a box full of cards; of more, those with the latest trouble
	all := make([]finding, 0, most)
	for _, card := range cards[:min(len(cards), most)] {
		all = append(all, cardHistory(byCard[card]))
	}
	return all
}

func latest(records []health.Record) time.Time { return records[len(records)-1].At }

// cardHistory is a warning while the card's last change left it sick.
func cardHistory(records []health.Record) finding {
	var parts []string
	sick := false
	for _, r := range records {
		switch r.Kind {
		case health.Unhealthy:
			sick = true
		case health.Healthy:
			sick = false
		}
	}
	for _, r := range records[max(0, len(records)-lastChanges):] {
		part := moment(&r.At) + " " + strings.ReplaceAll(string(r.Kind), "_", " ")
		if r.Reason != "" {
			part += ": " + oneLine(r.Reason)
		}
		parts = append(parts, part)
	}
	last := records[len(records)-1]
	who := cmp.Or(strings.TrimSpace(last.Vendor+" "+last.Model), "card") + " " + last.Card
	if last.Index != nil {
		who = fmt.Sprintf("%s/%d %s", last.Vendor, *last.Index, last.Card)
	}
	text := fmt.Sprintf("%s: %s", who, strings.Join(parts, "; "))
	if sick {
		return warn("card history", "it comes back by itself when it is repaired; until then no job gets it", "%s", text)
	}
	return ok("card history", "%s", text)
}
