package device

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/atomicwriter"

	"github.com/heteroflow/heteroflow/internal/clock"
)

const (
	textfileName  = "heteroflow_cards.prom"
	textfileEvery = 5 * time.Second
)

// keepTextfile writes the numbers of every card for node_exporter's textfile collector until ctx ends. The file then
// stays: its age tells that nobody writes it any more.
func (p *Plugin) keepTextfile(ctx context.Context, set settings) {
	p.awaitFirst(ctx)
	host, err := os.Hostname()
	if err != nil {
		p.log.Warn("the name of this machine is not known, metrics go without it", "error", err)
	}
	trouble := ""
	for ctx.Err() == nil {
		text := exposition(p.read(ctx), set.TextfileDCGM, host)
		if ctx.Err() != nil {
			return // half read
		}
		// Replaced whole: the collector may read at any moment.
		err := atomicwriter.WriteFile(filepath.Join(set.TextfileDir, textfileName), text, 0o644)
		switch {
		case err != nil && trouble != err.Error():
			trouble = err.Error()
			p.log.Warn("metrics cannot be written", "dir", set.TextfileDir, "error", err)
		case err == nil && trouble != "":
			trouble = ""
			p.log.Info("metrics are written again", "dir", set.TextfileDir)
		}
		if !clock.Sleep(ctx, clock.System(), textfileEvery) {
			return
		}
	}
}

// exposition is the text format of Prometheus. A card that does not answer is shown by what the plugin knows of it.
func exposition(states []state, dcgm bool, host string) []byte {
	var b bytes.Buffer
	family := func(name, kind, help string, labels func(state) []string, value func(state) *float64) {
		head := fmt.Sprintf("# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, s := range states {
			v := value(s)
			if v == nil {
				continue
			}
			b.WriteString(head)
			head = ""
			b.WriteString(name + "{" + strings.Join(labels(s), ",") + "} " + strconv.FormatFloat(*v, 'f', -1, 64) + "\n")
		}
	}
	for _, m := range cardMetrics {
		kind := "gauge"
		if m.counter() {
			kind = "counter"
		}
		family(m.metric, kind, m.help+".", state.labels, func(s state) *float64 {
			v := m.value(s)
			if v == nil {
				return nil
			}
			base := *v * m.scale
			if m.scale == 0.01 { // exact where the number is
				base = *v / 100
			}
			return &base
		})
	}
	if dcgm {
		labels := func(s state) []string { return s.dcgmLabels(host) }
		for _, m := range dcgmMetrics {
			family(m.metric, m.kind, m.help, labels, m.value)
		}
	}
	return b.Bytes()
}

// labels name the card. They never change while it lives.
func (s state) labels() []string {
	return []string{label("card", s.UUID), label("index", s.place()), label("model", s.Model), label("vendor", string(s.Vendor))}
}

func (s state) dcgmLabels(host string) []string {
	return []string{
		label("gpu", s.place()), label("UUID", s.UUID), label("device", string(s.Vendor)+s.place()), label("modelName", s.Model),
		label("Hostname", host),
	}
}

// place is the index for people, empty when it is not known.
func (s state) place() string {
	if s.Index < 0 {
		return ""
	}
	return strconv.Itoa(s.Index)
}

var escaped = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func label(name, value string) string {
	return name + `="` + escaped.Replace(strings.ToValidUTF8(value, "?")) + `"`
}
