"""The sender of notices from the outbox in the store, in a thread of its own: no epoch waits for a receiver.

A notice is in the outbox in the same transaction as the step of the story that it is about, and is marked there once it has gone
out: one is sent twice only if the daemon dies between the two. A receiver that is away is tried again, at longer and
longer intervals, for a day.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from synergy_core.errors import SynergyError, UsageError, one_line

from synergyd.daemon.notices.mail import Mail, recipient
from synergyd.daemon.notices.webhook import KEY_FILE, NotSentError, Webhook, read_secret
from synergyd.settings import Settings
from synergyd.slurm.client import SlurmError
from synergyd.store.notices import WaitingNotice
from synergyd.store.store import Store

log = logging.getLogger("synergyd.notices")
LOOK_S = 1.0  # between two looks at the outbox
AT_ONCE = 100  # notices of one look
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 3600.0
GIVE_UP_S = 86400.0
KEEP_S = 7 * 86400.0  # how long done notices are kept: nothing is sent twice within this time
TIDY_EVERY_S = 600.0
MAILS_A_DAY = 24  # for one job
HOOK, MAIL = "webhook", "mail"


class NoticeSender:
    """The thread that sends notices. `read_mail(job id)`: (MailUser, MailType) as Slurm has it. `leads`: only the leader sends."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        read_mail: Callable[[int], tuple[str, str]],
        leads: Callable[[], bool],
        *,
        webhook: Webhook | None,
        mail: Mail | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_store, self._read_mail, self._leads, self._clock = open_store, read_mail, leads, clock
        self._webhook, self._mail = webhook, mail
        self._store: Store | None = None
        self._hook_down = (0, 0.0)  # (failures in a row, when it is tried again)
        self._tidy_at_s = 0.0
        self._problem = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. Notices that have not gone out stay in the outbox."""
        self._closing.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                if self._leads():
                    self.look()
            except Exception as error:  # no job depends on it
                if str(error) != self._problem:
                    log.warning("notices wait: %s", error, exc_info=not isinstance(error, SynergyError))
                self._problem = str(error)
                if self._store is not None:
                    self._store.close()
                    self._store = None
        if self._store is not None:
            self._store.close()

    def look(self) -> None:
        """Try the notices that are due. Raises what the store raises."""
        store = self._store = self._store or self._open_store()
        now_s = self._clock()
        for waiting in store.due_notices(now_s, AT_ONCE):
            if self._closing.is_set():
                return
            self._try(store, waiting)
        self._problem = ""
        if now_s >= self._tidy_at_s:
            self._tidy_at_s = now_s + TIDY_EVERY_S
            if pruned_count := store.prune_notices(now_s - KEEP_S):
                log.warning("%d notices were given up: too many waited", pruned_count)

    def _try(self, store: Store, waiting: WaitingNotice) -> None:
        notice, done, problem, now_s = waiting.notice, list(waiting.done_ways), "", self._clock()
        next_s = now_s + min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(waiting.attempts, 16))
        attempts = waiting.attempts + 1
        if self._webhook is not None and HOOK not in done:
            if 0 < self._hook_down[1] - now_s <= LAST_RETRY_S:  # further ahead: the clock has been set back
                problem, next_s, attempts = "the webhook is away", self._hook_down[1], waiting.attempts
            else:
                problem = self._post(self._webhook, waiting)
                done += [] if problem else [HOOK]
        if self._mail is not None and not {MAIL, "no mail"} & set(done):
            try:
                done.append(self._send(self._mail, store, waiting))
            except (NotSentError, SlurmError) as error:
                problem, attempts = problem or str(error), waiting.attempts + 1
                next_s = min(next_s, now_s + LAST_RETRY_S)
        if problem and now_s - notice.at_s >= GIVE_UP_S:
            log.warning("notice %s is given up: %s", notice.key, one_line(problem, 200))
            problem = ""
        store.record_notice_attempt(notice.key, done, attempts, next_s if problem else None)

    def _post(self, webhook: Webhook, waiting: WaitingNotice) -> str:
        """Post a notice. Return why it did not go out, or "" if it did."""
        try:
            webhook.post(waiting.notice)
        except NotSentError as error:
            failures = self._hook_down[0] + 1
            wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))
            self._hook_down = (failures, self._clock() + wait_s)
            log.warning("the webhook did not take a notice: %s; next try in %.0f s", one_line(str(error), 200), wait_s)
            return str(error)
        self._hook_down = (0, 0.0)
        return ""

    def _send(self, mail: Mail, store: Store, waiting: WaitingNotice) -> str:
        """Send a notice by mail if its job wants any. Return what was done. Raises NotSentError, and SlurmError if Slurm is away."""
        notice = waiting.notice
        try:
            mail_user_and_type = self._read_mail(notice.job_id) if notice.job_id else ("", "")
        except SlurmError as error:
            if error.transient:
                raise
            mail_user_and_type = ("", "")  # it has left the queue: its directive says what is wanted
        address = recipient(notice, *mail_user_and_type)
        if not address:
            return "no mail"
        if notice.job_id and store.count_mailed(notice.job_id, self._clock() - 86400.0) >= MAILS_A_DAY:
            log.info("job %d has had %d mails within a day", notice.job_id, MAILS_A_DAY)
            return "no mail"
        mail.send(notice, address)
        return MAIL


def start_notices(
    settings: Settings,
    open_store: Callable[[], Store],
    read_mail: Callable[[int], tuple[str, str]],
    leads: Callable[[], bool],
) -> NoticeSender | None:
    """Start the sender and return it; return None if the admin wants no notices. Raise UsageError."""
    if not (settings.notice_url or settings.mail_prog):
        return None
    program = settings.mail_prog
    if program is not None and not (program.is_file() and program.stat().st_mode & 0o111):
        raise UsageError(f"MailProg {program}", "is no program", "name one such as /usr/bin/mail")
    webhook = Webhook(settings.notice_url, read_secret(settings.state_dir / KEY_FILE)) if settings.notice_url else None
    mail = Mail(program) if program is not None else None
    sender = NoticeSender(open_store, read_mail, leads, webhook=webhook, mail=mail)
    sender.start()
    return sender
