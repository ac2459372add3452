package store

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"
)

// BenchmarkAddUsage writes 500 rows of usage into PostgreSQL as one INSERT for each row, all in one transaction, as
// statements of many rows, and column by column, which is what the product does. The three take turns; beside the times
// of the last the ratios to it are reported. The private PostgreSQL of the tests does not sync to disk.
func BenchmarkAddUsage(b *testing.B) {
	s := mustOpen(b, urls["postgresql"](b))
	const rows = 500
	ways := []struct {
		name string
		do   func(ctx context.Context, tx *sql.Tx, records []Usage) error
	}{
		{"one-by-one", func(ctx context.Context, tx *sql.Tx, records []Usage) error {
			for i := range records {
				if err := insertUsage(ctx, tx, records[i:i+1], true); err != nil {
					return err
				}
			}
			return nil
		}},
		{"many-rows", func(ctx context.Context, tx *sql.Tx, records []Usage) error {
			return insertUsageRows(ctx, tx, records, true)
		}},
		{"columns", insertUsageColumns},
	}
	took := make([]time.Duration, len(ways))
	number, tokens := 0, int64(1000)
	for b.Loop() {
		for i, way := range ways {
			records := make([]Usage, rows)
			for n := range records {
				number++
				records[n] = Usage{
					ID: fmt.Sprintf("%012d", number), Tenant: "research", KeyID: NewID(), EndpointID: NewID(), Model: "qwen3-8b", Service: "llm", Backend: "_nomad-task-0b2c5b8e-2b2f-4d5c-9d2a-5a3b1c0d9e8f-vllm-llm-http",
					Operation: "chat.completions", End: EndDone, Stream: true, PromptTokens: &tokens, CompletionTokens: &tokens, Chunks: 100, Status: 200, Tries: 1, StartedAt: time.Now(), Duration: time.Second,
				}
			}
			begin := time.Now()
			if err := s.inRawTx(b.Context(), func(tx *sql.Tx) error { return way.do(b.Context(), tx, records) }); err != nil {
				b.Fatal(way.name, err)
			}
			took[i] += time.Since(begin)
		}
	}
	last := took[len(took)-1]
	b.ReportMetric(float64(last.Microseconds())/float64(b.N*rows), "us/row")
	for i, way := range ways[:len(ways)-1] {
		b.ReportMetric(float64(took[i])/float64(last), way.name+"/columns")
	}
}

// BenchmarkAddUsage_SQLite reads and runs the statements of 500 rows with parameters that have no number, and reports how many
// times as long those with numbers take.
func BenchmarkAddUsage_SQLite(b *testing.B) {
	s := mustOpen(b, urls["sqlite"](b))
	var took [2]time.Duration
	number := 0
	for b.Loop() {
		for way, numbered := range []bool{false, true} {
			records := make([]Usage, usageBatch)
			for n := range records {
				number++
				records[n] = Usage{ID: fmt.Sprintf("%012d", number), Model: "qwen3-8b", End: EndDone, StartedAt: time.Now()}
			}
			begin := time.Now()
			if err := s.inRawTx(b.Context(), func(tx *sql.Tx) error { return insertUsageRows(b.Context(), tx, records, numbered) }); err != nil {
				b.Fatal(err)
			}
			took[way] += time.Since(begin)
		}
	}
	b.ReportMetric(float64(took[0].Microseconds())/float64(b.N*usageBatch), "us/row")
	b.ReportMetric(float64(took[1])/float64(took[0]), "numbered/plain")
}
