package format

// call carries out the opcodes that in Python would import or call something.
// Here they make records.
func (m *machine) call(op byte) error {
	switch op {
	case 'c':
		g, err := m.globalLines()
		if err != nil {
			return err
		}
		return m.push(g)
	case 0x93: // STACK_GLOBAL
		names, err := m.popN(2)
		if err != nil {
			return err
		}
		module, ok1 := names[0].(string)
		name, ok2 := names[1].(string)
		if !ok1 || !ok2 {
			return broken("a pickle that names a global by something else than strings")
		}
		return m.push(Global{module, name})
	case 'i', 'o', 0x81, 'R', 0x92:
		return m.instance(op)
	case 'b':
		return m.build()
	case 'P':
		s, err := m.line()
		if err != nil {
			return err
		}
		return m.persist(s)
	case 'Q':
		id, err := m.pop()
		if err != nil {
			return err
		}
		return m.persist(id)
	}
	if err := m.pass(op); err != nil { // EXT1, EXT2, EXT4
		return err
	}
	return m.push(Global{"copyreg", "extension"})
}

// instance carries out the opcodes that make an object of a class, or call a
// function, and its arguments.
func (m *machine) instance(op byte) error {
	switch op {
	case 'i': // INST
		g, err := m.globalLines()
		if err != nil {
			return err
		}
		args, err := m.popMark()
		if err != nil {
			return err
		}
		return m.object(g, Tuple(args))
	case 'o': // OBJ
		items, err := m.popMark()
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return errStack
		}
		return m.object(items[0], Tuple(items[1:]))
	case 0x81, 'R': // NEWOBJ, REDUCE
		items, err := m.popN(2)
		if err != nil {
			return err
		}
		return m.object(items[0], items[1])
	}
	items, err := m.popN(3) // NEWOBJ_EX: its named arguments are dropped
	if err != nil {
		return err
	}
	return m.object(items[0], items[1])
}

func (m *machine) globalLines() (Global, error) {
	module, err := m.line()
	if err != nil {
		return Global{}, err
	}
	name, err := m.line()
	if err != nil {
		return Global{}, err
	}
	return Global{module, name}, m.spend(int64(len(module) + len(name)))
}

func (m *machine) object(class, args any) error {
	if err := m.spend(160); err != nil {
		return err
	}
	return m.push(&Object{Class: class, Args: args})
}

func (m *machine) build() error {
	items, err := m.popN(2)
	if err != nil {
		return err
	}
	o, ok := items[0].(*Object)
	if !ok {
		return m.push(items[0])
	}
	o.State = items[1]
	if m.opts.Build == nil {
		return m.push(o)
	}
	return m.push(m.opts.Build(o))
}

func (m *machine) persist(id any) error {
	if m.opts.Persist == nil {
		return m.push(Persistent{id})
	}
	return m.push(m.opts.Persist(id))
}
