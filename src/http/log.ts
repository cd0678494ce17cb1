/** The logger of the kernel; pino's loggers have this form. */
export interface KernelLog {
  debug(fields: object, text: string): void
  info(fields: object, text: string): void
  warn(fields: object, text: string): void
  error(fields: object, text: string): void
}
