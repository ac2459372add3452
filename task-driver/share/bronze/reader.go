package bronze

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Use is what one process holds of one card, or all of them together.
type Use struct {
	Card      string // UUID
	PID       int    // on the host; 0: the whole card, of which it is not told who holds what
	MemoryMiB *uint64
}

// Reader tells what processes hold of cards of one brand, or what is held of the cards. It is read every few seconds while bronze shares are held.
type Reader interface {
	// Uses are the processes on these cards, and may be those on others, or the cards themselves. Memory that is not told is nil.
	Uses(ctx context.Context, cards []grant.Card) ([]Use, error)
}

// CardReader is a Reader of a brand that tells what its cards hold, and not who holds it.
type CardReader interface {
	Reader
	OnlyCards()
}

func onlyCards(r Reader) bool {
	_, only := r.(CardReader)
	return only
}

// NVIDIA reads nvidia-smi.
type NVIDIA struct{ Tool share.Tool }

var _ Reader = NVIDIA{}

// Uses asks for the compute processes.
func (n NVIDIA) Uses(ctx context.Context, _ []grant.Card) ([]Use, error) {
	out, err := n.Tool.Run(ctx, "nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	if out.ExitCode != 0 {
		return nil, fmt.Errorf("nvidia-smi exits with %d: %s", out.ExitCode, firstLine(out.Stdout+out.Stderr))
	}
	return parseUses(out.Stdout)
}

// parseUses reads lines of UUID, pid and MiB. What is not a number, such as [N/A], is not known.
func parseUses(text string) ([]Use, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord, r.TrimLeadingSpace, r.LazyQuotes = -1, true, true
	var uses []Use
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return uses, nil
		}
		if err != nil {
			return uses, fmt.Errorf("read the processes of nvidia-smi: %w", err)
		}
		if len(row) != 3 || !strings.HasPrefix(row[0], "GPU-") {
			continue // such as "No running processes found"
		}
		pid, err := strconv.Atoi(strings.TrimSpace(row[1]))
		if err != nil || pid <= 0 {
			continue
		}
		use := Use{Card: row[0], PID: pid}
		if mib, err := strconv.ParseUint(strings.TrimSpace(row[2]), 10, 40); err == nil {
			use.MemoryMiB = &mib
		}
		uses = append(uses, use)
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
