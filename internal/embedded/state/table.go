package state

// A row is anything a table keeps. Rows are immutable once they are in a table: a change is a new row.

// table is one kind of row by primary key, with secondary indexes. It is not safe for concurrent use.
type table[T any] struct {
	name  string
	rows  map[string]*T
	keys  map[string]func(*T) string          // index name → key of a row in it; "" is not indexed
	index map[string]map[string]map[string]*T // index name → key → primary key → row
}

func newTable[T any](name string, keys map[string]func(*T) string) *table[T] {
	t := &table[T]{name: name, rows: map[string]*T{}, keys: keys, index: map[string]map[string]map[string]*T{}}
	for index := range keys {
		t.index[index] = map[string]map[string]*T{}
	}
	return t
}

func (t *table[T]) put(key string, row *T) {
	t.remove(key)
	t.rows[key] = row
	for index, keyOf := range t.keys {
		k := keyOf(row)
		if k == "" {
			continue
		}
		bucket := t.index[index][k]
		if bucket == nil {
			bucket = map[string]*T{}
			t.index[index][k] = bucket
		}
		bucket[key] = row
	}
}

func (t *table[T]) remove(key string) {
	old, ok := t.rows[key]
	if !ok {
		return
	}
	delete(t.rows, key)
	for index, keyOf := range t.keys {
		k := keyOf(old)
		bucket := t.index[index][k]
		delete(bucket, key)
		if len(bucket) == 0 {
			delete(t.index[index], k)
		}
	}
}

// overlay is what a transaction has changed in a table: nil is a removed row.
type overlay[T any] map[string]*T

func (o overlay[T]) get(t *table[T], key string) *T {
	if row, touched := o[key]; touched {
		return row
	}
	return t.rows[key]
}

// find is every row of an index as the transaction sees it, in no order.
func (o overlay[T]) find(t *table[T], index, key string) []*T {
	var found []*T
	for id, row := range t.index[index][key] {
		if _, touched := o[id]; !touched {
			found = append(found, row)
		}
	}
	for _, row := range o {
		if row != nil && t.keys[index](row) == key {
			found = append(found, row)
		}
	}
	return found
}

func (o overlay[T]) all(t *table[T]) []*T {
	rows := make([]*T, 0, len(t.rows))
	for id, row := range t.rows {
		if _, touched := o[id]; !touched {
			rows = append(rows, row)
		}
	}
	for _, row := range o {
		if row != nil {
			rows = append(rows, row)
		}
	}
	return rows
}
