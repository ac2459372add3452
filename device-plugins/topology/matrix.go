package topology

import (
	"errors"
	"iter"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// ErrNoMatrix says that a text holds no matrix of links.
var ErrNoMatrix = errors.New("there is no matrix of links in what the tool printed")

// maxColumns bounds a matrix. The largest real one has 54 columns.
const maxColumns = 128

var (
	escapes   = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)
	cardLabel = regexp.MustCompile(`^(GPU|NPU|MLU|DCU|HCU|XPU)\d+$`)
	pciLabel  = regexp.MustCompile(`^[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)
	nicLabel  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*(_[a-z0-9]+)*_?\d+[a-z0-9]*$`)
	nicIndex  = regexp.MustCompile(`^NIC\d+$`)
	nicLegend = regexp.MustCompile(`^[ \t]*(NIC\d+):[ \t]+(\S+)[ \t\r\n]*$`)
	cpuList   = regexp.MustCompile(`^\d+(-\d+)?(,\d+(-\d+)?)*$`)
)

// titles are the columns that follow the links, in this order; older tools print fewer of them.
var titles = []string{"CPU Affinity", "NUMA Affinity", "GPU NUMA ID"}

// mostTitleWords is more words than the titles have.
const mostTitleWords = 16

// toolWords are the words of a matrix that are not our own in lower case. Sources: the legend that nvidia-smi prints,
// also that of old versions (SOC); the constants of aclrtGetDevicesTopo; the link types of rocm-smi and amd-smi.
// SPB and MPB (one and several PCIe bridges) and MT2 (two MTLinks) are of mthreads-gmi, MLK and MUL of cnmon, XL of
// xpu-smi: public reports tell what they mean, and none of them has a whole matrix that could be taken over.
var toolWords = map[string]accel.LinkKind{
	"SOC": accel.LinkSystem, "HCCS_SW": accel.LinkHCCSSwitch, "SPB": accel.LinkPIX, "MPB": accel.LinkPXB,
	"MT": accel.LinkMTLink, "MLK": accel.LinkMLULink, "MUL": accel.LinkPXB, "XL": accel.LinkXPULink,
}

var counted = regexp.MustCompile(`^([A-Z]+)(\d+)$`)

// ParseMatrix reads the matrix that `nvidia-smi topo -m` prints, and tools of the same form. Columns are found by their
// labels, never by offset; colours, legends and text around the matrix are passed over; a row that does not show itself
// in its own column is not believed, nor a link of which the two rows disagree. Cards are named by the tool's label.
func ParseMatrix(text string) (Graph, error) {
	g, ok := matrix(lines(text), "X")
	if !ok {
		return Graph{}, ErrNoMatrix
	}
	for line := range lines(text) {
		found := nicLegend.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		if v, known := g.vertices[found[1]]; known && v.Kind == NIC {
			v.Name = found[2]
			g.vertices[v.ID] = v
		}
	}
	return g, nil
}

// lines are the lines of a text without their colours.
func lines(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "\x1b") {
				line = escapes.ReplaceAllString(line, "")
			}
			if !yield(line) {
				return
			}
		}
	}
}

// matrix reads the first matrix in the lines. The words of self are what a row shows in its own column.
func matrix(lines iter.Seq[string], self ...string) (Graph, bool) {
	var h header
	var rows []row
	var words []string
	for line := range lines {
		words = fields(words[:0], line)
		if next, ok := parseHeader(words); ok {
			if len(rows) > 0 {
				break
			}
			h = next
		} else if r, ok := h.parseRow(line, words, self); ok && len(rows) < 2*maxColumns {
			rows = append(rows, r)
		}
	}
	return h.graph(rows), len(rows) > 0
}

// maxWords bounds what is taken of one line: a label, the links, and what is said of the card.
const maxWords = 2 * maxColumns

func fields(words []string, line string) []string {
	for w := range strings.FieldsSeq(line) {
		if words = append(words, w); len(words) == maxWords {
			break
		}
	}
	return words
}

// header is the first line of a matrix.
type header struct {
	labels []string
	titles []string
}

func parseHeader(words []string) (header, bool) {
	n := 0
	for n < min(len(words), maxColumns) && label(words[n]) {
		n++
	}
	if n == 0 {
		return header{}, false
	}
	h := header{labels: slices.Clone(words[:n])}
	rest := strings.Join(words[n:min(len(words), n+mostTitleWords)], " ")
	for _, title := range titles {
		if after, ok := strings.CutPrefix(rest, title); ok {
			h.titles, rest = append(h.titles, title), strings.TrimSpace(after)
		}
	}
	return h, rest == "" && slices.ContainsFunc(h.labels, card) && distinct(h.labels)
}

func card(word string) bool { return cardLabel.MatchString(word) || pciLabel.MatchString(word) }

// label tells whether a word can name a column: it has a number in it, and is no link such as NV18.
func label(word string) bool {
	if card(word) {
		return true
	}
	if !nicLabel.MatchString(word) {
		return false
	}
	_, isLink := parseWord(word)
	return !isLink
}

func distinct(words []string) bool {
	for i, w := range words {
		if slices.Contains(words[:i], w) {
			return false
		}
	}
	return true
}

// parseWord reads the link that a cell shows.
func parseWord(word string) (accel.Link, bool) {
	if kind, ok := toolWords[word]; ok {
		return accel.Link{Kind: kind}, true
	}
	if word != strings.ToUpper(word) {
		return accel.Link{}, false
	}
	if found := counted.FindStringSubmatch(word); found != nil {
		if kind, ok := toolWords[found[1]]; ok {
			word = strings.ToUpper(string(kind)) + found[2]
		}
	}
	l, err := accel.ParseLink(strings.ToLower(word))
	return l, err == nil
}

// row is one line of a matrix.
type row struct {
	label string
	cells []string // one for each label of the header
	cpus  string
	numa  *int
}

func (h header) parseRow(line string, words, self []string) (row, bool) {
	n := len(h.labels)
	if len(words) <= n {
		return row{}, false
	}
	own := slices.Index(h.labels, words[0])
	if own < 0 || !slices.Contains(self, words[own+1]) {
		return row{}, false
	}
	r := row{label: words[0], cells: slices.Clone(words[1 : n+1])}
	facts := h.facts(line, words[n+1:])
	if cpus := facts[titles[0]]; cpuList.MatchString(cpus) {
		r.cpus = cpus
	}
	r.numa = numaNode(facts[titles[1]])
	return r, true
}

// facts reads the cells after the links. Where the tool's tabs are still there they tell which cells are empty; where
// they are lost, the cells are only believed when there is one for each title.
func (h header) facts(line string, words []string) map[string]string {
	if cells := strings.SplitN(strings.TrimRight(line, "\r\n"), "\t", maxWords); len(cells) > len(h.labels)+1 {
		words = cells[len(h.labels)+1:]
	} else if len(words) != len(h.titles) {
		return nil
	}
	facts := map[string]string{}
	for i, title := range h.titles {
		if i < len(words) {
			facts[title] = strings.TrimSpace(words[i])
		}
	}
	return facts
}

// graph makes the graph of the rows.
func (h header) graph(rows []row) Graph {
	var g Graph
	for _, l := range h.labels {
		v := Vertex{ID: l, Kind: NIC}
		switch {
		case card(l):
			v.Kind = Card
		case !nicIndex.MatchString(l):
			v.Name = l
		}
		g.AddVertex(v)
	}
	disputed := map[[2]string]bool{}
	for _, r := range rows {
		g.AddVertex(Vertex{ID: r.label, CPUs: r.cpus, NUMA: r.numa})
		for i, peer := range h.labels {
			link, known := parseWord(r.cells[i])
			if !known || peer == r.label {
				continue
			}
			if have, ok := g.Edge(r.label, peer); ok && have.Link.String() != link.String() {
				disputed[[2]string{have.A, have.B}] = true
			}
			g.AddEdge(Edge{A: r.label, B: peer, Link: link})
		}
	}
	for ends := range disputed {
		delete(g.edges, ends)
	}
	return g
}
