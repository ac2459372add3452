package bronze

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/ascend"
)

// Readers are those of the brands whose tools, or whose kernel driver, tell what processes or cards hold.
func Readers(h share.Host) map[accel.Vendor]Reader {
	return map[accel.Vendor]Reader{
		accel.NVIDIA:    NVIDIA{Tool: h.Tool},
		accel.AMD:       AMD{Host: h},
		accel.Hygon:     Hygon{Tool: h.Tool},
		accel.Ascend:    Table{Tool: h.Tool, Names: []string{"npu-smi", "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi"}, Args: []string{"info"}, find: chips},
		accel.MThreads:  Table{Tool: h.Tool, Names: []string{"mthreads-gmi"}},
		accel.Cambricon: Table{Tool: h.Tool, Names: []string{"cnmon"}},
		accel.Kunlunxin: Table{Tool: h.Tool, Names: []string{"xpu-smi", "xpu_smi"}},
		accel.MetaX:     Table{Tool: h.Tool, Names: []string{"mx-smi"}, find: secondCell},
		accel.Iluvatar:  Table{Tool: h.Tool, Names: []string{"ixsmi", "/usr/local/corex/bin/ixsmi"}},
		accel.Intel:     Table{Tool: h.Tool, Names: []string{"xpu-smi"}},
	}
}

// Table reads a tool that prints its cards and, below them, the processes with what each holds.
type Table struct {
	Tool  share.Tool
	Names []string // where the tool may be; the first that is found is run
	Args  []string
	// find tells which of the cards the number in a line of a process means; nil for the usual form.
	find func(out string, cards []grant.Card) map[string]string
}

var _ Reader = Table{}

// Uses runs the tool once.
func (t Table) Uses(ctx context.Context, cards []grant.Card) ([]Use, error) {
	name := t.Names[0]
	for _, n := range t.Names {
		if _, err := t.Tool.Look(n); err == nil {
			name = n
			break
		}
	}
	out, err := t.Tool.Run(ctx, name, t.Args...)
	if err != nil {
		return nil, err
	}
	if out.ExitCode != 0 {
		return nil, fmt.Errorf("%s exits with %d: %s", t.Names[0], out.ExitCode, firstLine(out.Stdout+out.Stderr))
	}
	lines, err := parseProcesses(out.Stdout)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t.Names[0], err)
	}
	find := t.find
	if find == nil {
		find = firstNumber
	}
	byNumber := find(out.Stdout, cards)
	var uses []Use
	for _, l := range lines {
		card, ok := byNumber[l.card]
		if !ok {
			card, ok = byNumber[strings.Fields(l.card)[0]]
		}
		if ok {
			uses = append(uses, Use{Card: card, PID: l.pid, MemoryMiB: l.mib})
		}
	}
	return uses, nil
}

// processLine is one process in a table: what stands before its number tells the card.
type processLine struct {
	card string // the first numbers of the line, with one blank between
	pid  int
	mib  *uint64
}

// parseProcesses reads the table of processes. Its heading begins with the card, has the process's number in a place that lines
// share, and ends with the memory.
func parseProcesses(out string) ([]processLine, error) {
	var lines []processLine
	at := -1 // where the number stands; -1 before the heading
	for text := range strings.Lines(out) {
		words := strings.Fields(strings.ReplaceAll(text, "|", " "))
		if len(words) == 0 {
			continue
		}
		if i := heading(words); i >= 0 {
			at = i
			continue
		}
		if at < 0 || len(words) < at+2 || !isNumber(words[0]) {
			continue
		}
		pid, err := strconv.Atoi(words[at])
		if err != nil || pid <= 0 {
			continue
		}
		card := words[0]
		if at > 1 && isNumber(words[1]) {
			card += " " + words[1]
		}
		lines = append(lines, processLine{card: card, pid: pid, mib: memory(words[at+1:])})
	}
	if at < 0 {
		return nil, errors.New("it prints no table of what processes hold")
	}
	return lines, nil
}

// heading is the place of the process's number, -1 when the words are no heading of a table of processes and their memory.
func heading(words []string) int {
	last := strings.ToLower(words[len(words)-1])
	if !slices.Contains([]string{"ID", "GPU", "XPU", "Card", "NPU"}, words[0]) || !strings.HasPrefix(last, "memory") && !strings.HasPrefix(last, "usage") {
		return -1
	}
	for i, w := range words {
		if w == "PID" || w == "Process" && i+1 < len(words) && words[i+1] == "id" {
			return i
		}
	}
	return -1
}

// memory is the last number, with its unit behind or beside it; nil when it is not told.
func memory(words []string) *uint64 {
	last := words[len(words)-1]
	if (last == "MiB" || last == "MB") && len(words) > 1 {
		last = words[len(words)-2]
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSuffix(last, "MiB"), "MB"), 10, 40)
	if err != nil {
		return nil
	}
	return &n
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 31)
	return err == nil
}

var address = regexp.MustCompile(`\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b`)

// firstNumber is the usual form: a line of a card begins with its number and has its address. A tool that prints no addresses counts
// as the device plugin does.
func firstNumber(out string, cards []grant.Card) map[string]string { return numbered(out, cards, 0) }

// secondCell is the form where the number of the board stands first and that of the card in the next cell.
func secondCell(out string, cards []grant.Card) map[string]string { return numbered(out, cards, 1) }

func numbered(out string, cards []grant.Card, cell int) map[string]string {
	found, addresses := map[string]string{}, false
	for text := range strings.Lines(out) {
		at := address.FindString(text)
		cells := strings.Split(strings.TrimPrefix(strings.TrimSpace(text), "|"), "|")
		if at == "" || len(cells) <= cell {
			continue
		}
		addresses = true
		words := strings.Fields(cells[cell])
		i := slices.IndexFunc(cards, func(c grant.Card) bool { return c.PCI != "" && place(c.PCI) == place(at) })
		if i >= 0 && len(words) > 0 && isNumber(words[0]) {
			found[words[0]] = cards[i].UUID
		}
	}
	if !addresses {
		for _, c := range cards {
			found[strconv.Itoa(c.Index)] = c.UUID
		}
	}
	return found
}

// place is a PCI address with a domain of four digits.
func place(address string) string {
	domain, rest, _ := strings.Cut(strings.ToLower(address), ":")
	return domain[max(0, len(domain)-4):] + ":" + rest
}

// chips is Ascend's form: boards and the chips on them, each with a node of its own.
func chips(out string, cards []grant.Card) map[string]string {
	found := map[string]string{}
	for _, chip := range ascend.ParseChips(out) {
		node := "/dev/davinci" + strconv.Itoa(chip.Device)
		if i := slices.IndexFunc(cards, func(c grant.Card) bool { return slices.Contains(c.Nodes, node) }); i >= 0 {
			found[fmt.Sprintf("%d %d", chip.NPU, chip.Number)] = cards[i].UUID
		}
	}
	return found
}

// Hygon reads hy-smi, which tells what cards hold and not who holds it.
type Hygon struct{ Tool share.Tool }

var _ CardReader = Hygon{}

// OnlyCards says that no process is told.
func (Hygon) OnlyCards() {}

// Uses are the cards, with no process.
func (h Hygon) Uses(ctx context.Context, cards []grant.Card) ([]Use, error) {
	name := "/opt/hyhal/bin/hy-smi"
	if _, err := h.Tool.Look(name); err != nil {
		name = "hy-smi"
	}
	out, err := h.Tool.Run(ctx, name, "--showmeminfo", "vram")
	if err != nil {
		return nil, err
	}
	if out.ExitCode != 0 {
		return nil, fmt.Errorf("hy-smi exits with %d: %s", out.ExitCode, firstLine(out.Stdout+out.Stderr))
	}
	held := parseHeld(out.Stdout)
	if len(held) == 0 {
		return nil, errors.New("read hy-smi: it tells the memory of no card")
	}
	var uses []Use
	for _, c := range cards {
		if mib, ok := held[c.Index]; ok {
			uses = append(uses, Use{Card: c.UUID, MemoryMiB: &mib})
		}
	}
	return uses, nil
}

var heldLine = regexp.MustCompile(`(?i)^\s*[HD]CU\[(\d+)\]\s*: vram Total Used Memory \((MiB|B)\): (\d+)\s*$`)

// parseHeld reads lines "HCU[0] : vram Total Used Memory (MiB): 2", by the number of the card.
func parseHeld(out string) map[int]uint64 {
	held := map[int]uint64{}
	for text := range strings.Lines(out) {
		m := heldLine.FindStringSubmatch(strings.TrimRight(text, "\r\n"))
		if m == nil {
			continue
		}
		index, err := strconv.Atoi(m[1])
		n, numErr := strconv.ParseUint(m[3], 10, 60)
		if err != nil || numErr != nil {
			continue
		}
		if strings.EqualFold(m[2], "B") {
			n = (n + 1<<20 - 1) >> 20
		}
		held[index] = n
	}
	return held
}
