package upstream

import (
	"sync"
	"time"
)

// pool keeps connections until they are used again, or for a while.
type pool struct {
	mu    sync.Mutex
	idle  map[string][]*conn // by address, the one used last at the end
	sweep bool               // old ones are going to be closed
}

// take gives a connection that was kept, nil without any. Whether it is as it was left is not known.
func (p *pool) take(addr string) *conn {
	for {
		c := p.last(addr)
		if c == nil || time.Since(c.since) < idleTime {
			return c
		}
		c.close()
	}
}

func (p *pool) last(addr string) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[addr]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	list[len(list)-1] = nil
	p.idle[addr] = list[:len(list)-1]
	return c
}

// give keeps a connection.
func (p *pool) give(c *conn) {
	c.since, c.used = time.Now(), true
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle[c.addr]) >= maxIdle {
		c.close()
		return
	}
	p.idle[c.addr] = append(p.idle[c.addr], c)
	if !p.sweep {
		p.sweep = true
		time.AfterFunc(idleTime, p.swept)
	}
}

// swept closes what was idle for too long.
func (p *pool) swept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep = false
	oldest := time.Now().Add(-idleTime)
	for addr, list := range p.idle {
		n := 0
		for n < len(list) && list[n].since.Before(oldest) {
			list[n].close()
			n++
		}
		if list = append([]*conn(nil), list[n:]...); len(list) == 0 {
			delete(p.idle, addr)
			continue
		}
		p.idle[addr] = list
		p.sweep = true
	}
	if p.sweep {
		time.AfterFunc(idleTime/2, p.swept)
	}
}

// drop closes what is kept to an address, or to all.
func (p *pool) drop(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, list := range p.idle {
		if addr != "" && at != addr {
			continue
		}
		for _, c := range list {
			c.close()
		}
		delete(p.idle, at)
	}
}
