package store

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/heteroflow/heteroflow/internal/testkit/postgres"
)

func TestOpen_RefusesATransactionModePooler(t *testing.T) {
	t.Parallel()
	direct := postgres.SchemaURL(t)
	s, err := Open(t.Context(), startPooler(t, direct), nil)
	if err == nil {
		t.Fatal("opened through a pooler", s.Close())
	}
	if !errors.Is(err, ErrPooler) || !strings.Contains(err.Error(), "pool_mode to session") {
		t.Errorf("got %v", err)
	}
	if err := mustOpen(t, direct).Ping(t.Context()); err != nil {
		t.Errorf("without the pooler: %v", err)
	}
}

// pooler hands a server connection to a client for one transaction, as PgBouncer does with pool_mode=transaction.
// It speaks just enough of the protocol for simple queries.
type pooler struct {
	url string

	mu   sync.Mutex
	idle []*pgconn.HijackedConn // last in, first out
}

// startPooler starts a pooler before the server and returns its url.
func startPooler(t *testing.T, direct string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{url: direct}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed by the clean-up
			}
			wg.Go(func() {
				if err := errors.Join(p.serve(client), client.Close()); err != nil {
					t.Errorf("pooler: %v", err)
				}
			})
		}
	})
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		for _, server := range p.idle {
			if err := server.Conn.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return "postgres://postgres@" + listener.Addr().String() + "/postgres?sslmode=disable"
}

func (p *pooler) serve(conn net.Conn) error {
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return err
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := client.Flush(); err != nil {
		return err
	}
	var server *pgconn.HijackedConn
	for {
		message, err := client.Receive()
		if _, bye := message.(*pgproto3.Terminate); bye || err != nil {
			return err
		}
		query, ok := message.(*pgproto3.Query)
		if !ok {
			return errors.New("only simple queries come through this pooler")
		}
		if server == nil {
			if server, err = p.take(); err != nil {
				return err
			}
		}
		status, err := relay(client, server.Frontend, query)
		if err != nil {
			return err
		}
		if status == 'I' { // the transaction is over: the server connection is anyone's
			p.give(server)
			server = nil
		}
	}
}

// relay sends one query on and its answer back, and returns the transaction status after it.
func relay(client *pgproto3.Backend, server *pgproto3.Frontend, query *pgproto3.Query) (byte, error) {
	server.Send(query)
	if err := server.Flush(); err != nil {
		return 0, err
	}
	for {
		answer, err := server.Receive()
		if err != nil {
			return 0, err
		}
		client.Send(answer)
		if err := client.Flush(); err != nil {
			return 0, err
		}
		if ready, ok := answer.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus, nil
		}
	}
}

func (p *pooler) take() (*pgconn.HijackedConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		server := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return server, nil
	}
	conn, err := pgconn.Connect(context.Background(), p.url)
	if err != nil {
		return nil, err
	}
	return conn.Hijack()
}

func (p *pooler) give(server *pgconn.HijackedConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, server)
}

func TestProbeSessions(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection lost")
	for name, c := range map[string]struct {
		first, second *fakeSession
		want          error
	}{
		"two real sessions":           {first: &fakeSession{pids: []int{1}}, second: &fakeSession{pids: []int{2}}},
		"moved by a transaction":      {first: &fakeSession{pids: []int{1, 3}}, second: &fakeSession{pids: []int{1}}, want: ErrPooler},
		"moved the second time":       {first: &fakeSession{pids: []int{1, 1, 1, 2}}, second: &fakeSession{pids: []int{5}}, want: ErrPooler},
		"two sessions on one process": {first: &fakeSession{pids: []int{1}}, second: &fakeSession{pids: []int{1}}, want: ErrPooler},
		"a session that breaks":       {first: &fakeSession{pids: []int{1}}, second: &fakeSession{err: broken}, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := probeSessions(t.Context(), c.first, c.second); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// fakeSession answers its pids in turn, the last for ever.
type fakeSession struct {
	pids []int
	err  error
}

func (s *fakeSession) backend(context.Context) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	pid := s.pids[0]
	if len(s.pids) > 1 {
		s.pids = s.pids[1:]
	}
	return pid, nil
}

func (s *fakeSession) begin(context.Context) error    { return s.err }
func (s *fakeSession) rollback(context.Context) error { return s.err }
