import { Sql, type Db } from '../../src/db/sql.ts'

/** The database with a list of its statements; `begin` stands for that of a transaction. */
export const recordStatements = <D extends Db>(of: D): { db: D; statements: string[] } => {
  const statements: string[] = []
  const recorded = <One extends Db>(one: One): One =>
    new Proxy(one, {
      get: (target, key) => {
        const member: unknown = Reflect.get(target, key)
        if (typeof member !== 'function') return member
        if (key === 'transaction')
          return (work: (tx: Db) => Promise<unknown>): unknown => {
            statements.push('begin')
            return target.transaction((tx) => work(recorded(tx)))
          }
        return (...args: unknown[]): unknown => {
          const query = args.find((arg) => arg instanceof Sql)
          if (query !== undefined) statements.push(query.toQuery().text)
          return Reflect.apply(member, target, args)
        }
      },
    })
  return { db: recorded(of), statements }
}
