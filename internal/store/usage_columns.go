package store

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
)

// column is one of usage_records: its type, and how a record's value is written as an element of an array.
type column struct {
	kind   string
	append func(to []byte, u *Usage) []byte
}

func textColumn(of func(*Usage) string) column {
	return column{"text", func(to []byte, u *Usage) []byte { return appendElement(to, clean(of(u))) }}
}

func numberColumn(of func(*Usage) int64) column {
	return column{"bigint", func(to []byte, u *Usage) []byte { return strconv.AppendInt(to, of(u), 10) }}
}

func knownColumn(of func(*Usage) *int64) column {
	return column{"bigint", func(to []byte, u *Usage) []byte {
		if n := of(u); n != nil {
			return strconv.AppendInt(to, *n, 10)
		}
		return append(to, "NULL"...)
	}}
}

func flagColumn(of func(*Usage) bool) column {
	return column{"boolean", func(to []byte, u *Usage) []byte { return strconv.AppendBool(to, of(u)) }}
}

// usageByColumn are the columns in the order of usageColumns.
var usageByColumn = []column{
	textColumn(func(u *Usage) string { return u.ID }), textColumn(func(u *Usage) string { return u.Tenant }),
	textColumn(func(u *Usage) string { return u.KeyID }), textColumn(func(u *Usage) string { return u.EndpointID }),
	textColumn(func(u *Usage) string { return u.Model }), textColumn(func(u *Usage) string { return u.Service }),
	textColumn(func(u *Usage) string { return u.Backend }), textColumn(func(u *Usage) string { return u.Operation }),
	textColumn(func(u *Usage) string { return u.End }), flagColumn(func(u *Usage) bool { return u.Stream }),
	knownColumn(func(u *Usage) *int64 { return u.PromptTokens }), knownColumn(func(u *Usage) *int64 { return u.CompletionTokens }),
	numberColumn(func(u *Usage) int64 { return int64(u.Status) }), numberColumn(func(u *Usage) int64 { return int64(u.Tries) }),
	numberColumn(func(u *Usage) int64 { return micros(u.StartedAt) }), numberColumn(func(u *Usage) int64 { return u.Duration.Microseconds() }),
	numberColumn(func(u *Usage) int64 { return u.FirstByte.Microseconds() }), textColumn(func(u *Usage) string { return u.ServedModel }),
	knownColumn(func(u *Usage) *int64 { return u.CachedTokens }), flagColumn(func(u *Usage) bool { return u.Estimated }),
	numberColumn(func(u *Usage) int64 { return int64(u.Chunks) }), textColumn(func(u *Usage) string { return u.Tried }),
}

// usageArrays are a batch of records column by column, each as PostgreSQL writes an array: the driver would make a value
// of each field and look up how to write it, which costs a gateway more than all else about a row.
func usageArrays(records []Usage) []any {
	arrays := make([]any, len(usageByColumn))
	var array []byte
	for i, c := range usageByColumn {
		array = append(array[:0], '{')
		for n := range records {
			if n > 0 {
				array = append(array, ',')
			}
			array = c.append(array, &records[n])
		}
		arrays[i] = string(append(array, '}'))
	}
	return arrays
}

// appendElement writes a text as an element of an array.
func appendElement(to []byte, text string) []byte {
	to = append(to, '"')
	if strings.IndexByte(text, '"') < 0 && strings.IndexByte(text, '\\') < 0 {
		return append(append(to, text...), '"')
	}
	for i := range len(text) {
		if c := text[i]; c == '"' || c == '\\' {
			to = append(to, '\\')
		}
		to = append(to, text[i])
	}
	return append(to, '"')
}

// insertUsageArrays gives PostgreSQL a whole batch as one array for each column: it is one statement that the server knows,
// however many rows there are, and reads a value for each column in place of one for each field.
var insertUsageArrays = func() string {
	var arrays []string
	for i, c := range usageByColumn {
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, c.kind))
	}
	return "INSERT INTO usage_records (" + usageColumns + ") SELECT * FROM unnest(" + strings.Join(arrays, ", ") + ") ON CONFLICT (id) DO NOTHING"
}()

// insertUsageColumns inserts records column by column, in their order.
func insertUsageColumns(ctx context.Context, tx *sql.Tx, records []Usage) error {
	_, err := tx.ExecContext(ctx, insertUsageArrays, usageArrays(records)...)
	return err
}
