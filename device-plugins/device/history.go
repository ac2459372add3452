package device

import (
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/health"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// A history writes down what befalls the cards. Plugin.mu guards it. A nil history writes nothing: looking at the machine
// once leaves no trace.
type history struct {
	dir  string
	log  hclog.Logger
	sick map[string]bool // as written last, over restarts
}

func openHistory(dir string, log hclog.Logger) *history {
	h := &history{dir: dir, log: log, sick: map[string]bool{}}
	records, err := health.Read(dir)
	if err != nil {
		log.Warn("health history cannot be read, it begins anew", "error", err)
	}
	for _, r := range records {
		switch r.Kind {
		case health.Unhealthy:
			h.sick[r.Card] = true
		case health.Healthy:
			delete(h.sick, r.Card)
		}
	}
	return h
}

// follow writes down which of the cards became sick or well.
func (h *history) follow(cards []accel.Card, at time.Time) {
	if h == nil {
		return
	}
	var records []health.Record
	for _, c := range cards {
		if h.sick[c.UUID] != c.Health.OK {
			continue // as before
		}
		kind := health.Healthy
		if c.Health.OK {
			delete(h.sick, c.UUID)
			h.log.Info("card is healthy again", "device_id", c.UUID)
		} else {
			kind, h.sick[c.UUID] = health.Unhealthy, true
			h.log.Warn("card is unhealthy", "device_id", c.UUID, "reason", c.Health.Reason)
		}
		records = append(records, record(c, kind, c.Health.Reason, at))
	}
	h.write(records...)
}

func record(c accel.Card, kind health.Kind, reason string, at time.Time) health.Record {
	r := health.Record{At: at.UTC().Truncate(time.Second), Kind: kind, Vendor: string(c.Vendor), Model: c.Model, Card: c.UUID, Reason: reason}
	if c.Index >= 0 {
		r.Index = &c.Index
	}
	return r
}

// write is not worth failing for: the cards matter more than their history.
func (h *history) write(records ...health.Record) {
	if h == nil {
		return
	}
	if err := health.Append(h.dir, records...); err != nil {
		h.log.Warn("health history cannot be written", "error", err)
	}
}

// foreign writes down that processes without a grant use a card.
func (h *history) foreign(c accel.Card, processes []int, at time.Time) {
	const most = 8
	text := fmt.Sprint(processes[:min(len(processes), most)])
	h.write(record(c, health.Foreign, "processes "+strings.Trim(text, "[]")+" run on it without a grant", at))
}
